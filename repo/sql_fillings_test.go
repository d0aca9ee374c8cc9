package repo_test

// The facts that TestSQL needs about the package's SQL constants.

// fragments are constants that are parts of statements. Other constants contain them, or code puts
// them together and the tests of its callers try them.
var fragments = []string{
	// Runs and jobs.
	"abandonedSQL", "forgottenSQL", "unsettledSQL",
	// Leases and guards.
	"attemptGuardSQL", "attemptLockSQL", "attemptSQL", "fenceSQL", "freeGuardSQL", "freeSQL", "heldSQL",
	"leaseConflictSQL", "leaseIsFreeSQL", "leaseValuesSQL", "leafParentsSQL", "noGuardSQL",
	// Protections.
	"aboveSQL", "ActiveSQL", "missingTargetSQL", "noTableSQL", "anyActiveSQL", "missingTargetsSQL", "cancelledUsersSQL", "userVetoesSQL",
	// Fires.
	"noLedgerTimeSQL", "recordLeaseSQL",
	// Loose foreign keys.
	"createFunctionSQL", "createRowTriggerSQL", "createTriggerSQL", "compositeSQL", "forgetDiscardedSQL", "deadRecordMatchSQL", "dropFunctionSQL", "dropTriggerSQL", "enableRowTriggerSQL", "enableTriggerSQL", "functionBodySQL", "insertsSQL", "moveFunctionSQL", "namedQueueSQL", "tracedBodySQL", "BaseTypeSQL", "comparedSQL", "KeyClassSQL", "userTriggerSQL", "forgetSQL", "countedSQL", "untracedSQL", "pendingRecordsSQL", "waitingRecordsSQL",
	"livingPartSQL", "livingSeveralSQL", "livingSQL", "plainRecordedSQL", "recordedSQL", "reusedRecordsSQL",
	"ProtectedSQL", "NamedSQL", "UniqueKeysSQL", "keepsRowsSQL", "keepsSQL", "detachingSQL", "purgeAllRemovalSQL", "purgeAllResultSQL", "purgeAllSQL", "purgeSeveralSQL", "purgeUncountedSQL", "revokeFunctionSQL",
	// Groups.
	"archivedSQL", "comparableSQL", "cutoffSQL", "detailsSQL", "directMembershipSQL", "knownMarkSQL", "marksSQL", "namespaceMembersSQL", "noDetailsSQL", "noSchedulesSQL",
	"schedulesSQL", "sourceMembersSQL", "todaySQL",
	// Users.
	"botListSQL", "botRangeSQL", "foundPlaceholdersSQL", "deletionPendingSQL", "keepsBotSQL", "HoldsSQL", "migratableSQL", "noSettingsSourceSQL", "ownedSQL", "settingsSourceSQL",
	// Receipts, and the remainder outside.
	"recordOutsideSQL", "changedRowsSQL", "jobsOfTimeSQL", "KeyOfSQL", "ReceiptSQL", "ReceiptFieldsSQL", "SummarySQL", "summedSQL", "talliedSQL", "summaryOfSQL",
	// Sweeps.
	"placesSQL", "sweepSQL", "directBoundSQL", "directFirstSQL", "directGuardSQL", "directRangeSQL", "directSQL", "takeSQL",
}

// fillings replace the placeholders of statements, on the reference schema of main. Each is for all
// statements, or for the one whose name stands before it. The name of a constant is its text.
var fillings = map[string]string{
	// Runs.
	"{unsettled}": "true", "finishRunSQL{unsettled}": "$15",
	// Guards.
	"{guard}": "fenceSQL", "{name}": "'w'", "{holder}": "'us'", "{epoch}": "1",
	// Loose foreign keys.
	"{journal}": "", "{queues}": "(0, 'loose_foreign_keys_deleted_records')", "{forget}": "forgetSQL", "{failures}": "maintenance.record_failures", "{id}": "bigint", "{place}": "0", "{partitions}": "'{1}'::bigint[]", "{pending}": "pendingRecordsSQL",
	"{owner}": "NULL::bigint", "{queue_name}": "'loose_foreign_keys_deleted_records'", "{retried_columns}": "", "{retried_values}": "",
	"{queue}": "public.loose_foreign_keys_deleted_records", "{numbered_table}": "public.loose_foreign_keys_deleted_records",
	"{numbered_column}": "id", "{numbers}": "public.loose_foreign_keys_deleted_records_id_seq", "{in_partition}": " WHERE t.partition = 1",
	"{child}": "public.members", "{quoted}": "public.members", "{column}": "user_id", "{list}": "$1::text[]::bigint[]", "{child_columns}": "t.user_id", "{parent_values}": "k1",
	"{join}": "", "{joined}": "t.user_id = ANY ($1::text[]::bigint[])", "{parents}": "unnest($1::text[]::bigint[]) WITH ORDINALITY AS k (k1, n)", "{matched}": "t.user_id = k.k1",
	"{key_number}": "primary_key_value", "{key_values}": "NULL::text[]", "{fits}": "", "{conditions}": " AND t.source_type = 'Project'",
	"{change}": "DELETE FROM public.members t", "{lock}": "FOR UPDATE SKIP LOCKED",
	"{leaf}": "gitlab_partitions_dynamic.leaf", "{number}": "2", "{sequence}": "public.a_sequence", "{sequence_literal}": "'public.a_sequence'",
	"{table}": "public.users", "{condition}": "id IS NULL", "{type}": "bigint", "{exact}": "bigint",
	"{present}": "t.user_id IS NOT NULL", "{behind}": " AND (t.user_id) > (7::text::bigint)", "{equalities}": "", "{last_values}": "k.k1", "{next_values}": "x.k1", "{named_columns}": "t.user_id AS k1", "{texts}": "k.k1::text",
	"{users}": "missingTargetSQL", "{namespaces}": "noTableSQL", "{missing}": "missingTargetsSQL", "{parts}": "livingPartSQL", "{parent_column}": "id", "{lists}": "$1::text[]::bigint[]", "claimsSQL{lists}": "$3::bigint[]", "{names}": "k1",
	"{parent}": "public.users", "{matches}": "t.id = k.k1", "{row_age}": "age(t.xmin)",
	"{recorded_columns}": "primary_key_value", "{recorded_values}": "k.k1",
	// Groups.
	"{legacy}": "schedulesSQL", "{modern}": "detailsSQL", "{marks}": "marksSQL", "{cutoff}": "cutoffSQL", "{today}": "todaySQL",
	"{direct}": "directMembershipSQL", "{archived}": "archivedSQL", "{state}": "n.state", "{key}": "'deletion_scheduled_by_user_id'",
	"{m.type}": "m.type", "{m.requested_at}": "m.requested_at", "{m.invite_token}": "m.invite_token", "{m.state}": "m.state", "{m.expires_at}": "m.expires_at",
	"{l.expires_at}": "l.expires_at", "{routes.touched}": ", updated_at = now() AT TIME ZONE 'UTC'", "{namespaces.touched}": ", updated_at = now() AT TIME ZONE 'UTC'",
	"{settings.newest}": "ORDER BY id DESC", "{routed}": "true",
	"renameGroupSQL{state}": ", state = 0", "{mark}": "deletion_scheduled_at = NULL, ", "{keys}": "ARRAY['deletion_scheduled_by_user_id']",
	"{which}": "sourceMembersSQL", "leftRecordsSQL{which}": "", "{known}": "knownMarkSQL", "projectToRemoveSQL{namespace}": "p.project_namespace_id",
	// Users.
	"typeHoldsSQL{value}": "$2", "userColumnsSQL{value}": "'active'",
	"{going}": "deletionPendingSQL", "{ghosts}": "ghost_user_migrations", "userStaysSQL{queue}": "ghost_user_migrations", "queueGhostSQL{columns}": "user_id, initiator_user_id, hard_delete, created_at, updated_at, user_type", "{settings}": "settingsSourceSQL", "{organization}": "u.organization_id",
	"solelyOwnedGroupsSQL{today}": "(now() AT TIME ZONE 'UTC')::date", "ownedPlacesSQL{today}": "(now() AT TIME ZONE 'UTC')::date",
	"dueMigrationsSQL{kind}": "coalesce(q.user_type, u.user_type)", "{same}": "g.organization_id IS NOT DISTINCT FROM 1", "{touched}": ", updated_at = now()",
	"{columns}": "username, email, projects_limit", "{values}": "free.username, '', 0",
	"{taken}": "EXISTS (SELECT FROM users u WHERE lower(u.username) = 'ghost' || n)",
	"{bots}":  "botRangeSQL", "{eligible}": "eligibleForDeletionSQL",
	"{users.touched}": ", updated_at = now() AT TIME ZONE 'UTC'", "{users.admin}": "admin",
	"{import_placeholder_user_details.touched}": ", updated_at = $2", "{d.created_at}": "d.created_at",
	// Receipts.
	"{noted}": "ReceiptSQL", "{summary}": "SummarySQL", "{summed}": "summedSQL", "{tallied}": "talliedSQL", "{kept}": "k.covered", "{covered}": "array_agg(key)::text", "{order}": "key", "{counted}": "true", "{fields}": "ReceiptFieldsSQL", "{next}": "9", "{returned}": "user_id", "{done}": "true",
	// Protected rows.
	"parentRowsSQL{id}": "t.id::text", "{cells}": "t.parent_id::text", "parentRowsSQL{names}": "v1", "parentRowsSQL{matches}": "t.id = k.v1", "parentRowsSQL{table}": "public.namespaces",
	// Sweeps.
	"placesSQL{keys}": "t.id::text", "placesSQL{match}": "t.id = ANY ($4::bigint[])", "placesSQL{oid}": "$1", "placesSQL{tid}": "$2", "placesSQL{limit}": "$3",
}

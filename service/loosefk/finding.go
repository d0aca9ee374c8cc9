package loosefk

// Severities of a finding.
const (
	SeverityError   = "error"
	SeverityWarning = "warning"
)

// Finding is something about loose foreign keys that somebody should look at.
type Finding struct {
	Severity string `json:"severity"`
	// Code is one of the fixed names of the kinds of findings.
	Code string `json:"code"`
	// Database is empty for a finding about the definitions file or the configuration.
	Database string `json:"database"`
	// Object is the definition, table, leaf, trigger or file concerned.
	Object string `json:"object"`
	// Advice says what to do.
	Advice string `json:"advice"`
}

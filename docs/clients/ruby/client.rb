# A client of caretaker in Ruby: it starts a run, watches it, and reads what an error says.
#
#     ruby client.rb localhost:50051 ca.crt alice.token
require "grpc"
require "google/rpc/error_details_pb"
require "google/rpc/status_pb"
require "maintenance/v1/maintenance_services_pb"

WORKER = "loose_foreign_keys_cleanup"

# The google.rpc.ErrorInfo of an error, nil if it has none.
def error_info(error)
  details = error.metadata["grpc-status-details-bin"] or return
  any = Google::Rpc::Status.decode(details).details.find { |d| d.type_url.end_with?("/google.rpc.ErrorInfo") }
  any && Google::Rpc::ErrorInfo.decode(any.value)
end

address, ca_file, token_file = ARGV
tls = GRPC::Core::ChannelCredentials.new(File.read(ca_file))
token = { "authorization" => "Bearer #{File.read(token_file).strip}" }
client = Maintenance::V1::MaintenanceService::Stub.new(address, tls)

# With async the answer comes at once. The same request_id again never starts a second run, so a
# call whose answer was lost can be repeated.
request = Maintenance::V1::RunBatchRequest.new(
  worker: WORKER, database: "main", async: true, request_id: "ruby-1"
)
started = client.run_batch(request, metadata: token).run
again = client.run_batch(request, metadata: token).run
puts "the same run: #{started.id == again.id}"

last = nil
client.watch_run(Maintenance::V1::WatchRunRequest.new(id: started.id), metadata: token).each { |event| last = event.run }
puts "#{last.state} records #{last.counts["processed_records"]}"

begin
  client.run_batch(Maintenance::V1::RunBatchRequest.new(worker: WORKER, database: "nowhere"), metadata: token)
rescue GRPC::BadStatus => e
  info = error_info(e)
  puts "#{e.class.name.split("::").last} #{info.reason} #{info.metadata["database"]}"
end

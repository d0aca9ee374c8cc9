"""A client of caretaker in Python: it starts a run, watches it, and reads what an error says.

    python3 client.py localhost:50051 ca.crt alice.token
"""
import sys

import grpc
from maintenance.v1 import maintenance_pb2 as pb
from maintenance.v1 import maintenance_pb2_grpc
import rpc_status_pb2  # with the package googleapis-common-protos: google.rpc.status_pb2, error_details_pb2

WORKER = "loose_foreign_keys_cleanup"


def error_info(error):
    """The google.rpc.ErrorInfo of an error, None if it has none."""
    for key, value in error.trailing_metadata():
        if key == "grpc-status-details-bin":
            for detail in rpc_status_pb2.Status.FromString(value).details:
                if detail.type_url.endswith("/google.rpc.ErrorInfo"):
                    return rpc_status_pb2.ErrorInfo.FromString(detail.value)
    return None


def main(address, ca_file, token_file):
    with open(ca_file, "rb") as file:
        tls = grpc.ssl_channel_credentials(file.read())
    with open(token_file) as file:
        token = grpc.access_token_call_credentials(file.read().strip())
    with grpc.secure_channel(address, grpc.composite_channel_credentials(tls, token)) as channel:
        client = maintenance_pb2_grpc.MaintenanceServiceStub(channel)

        # With async the answer comes at once. The same request_id again never starts a second run,
        # so a call whose answer was lost can be repeated. async is a word of Python's own.
        request = pb.RunBatchRequest(worker=WORKER, database="main", request_id="python-1", **{"async": True})
        started = client.RunBatch(request).run
        again = client.RunBatch(request).run
        print("the same run:", "true" if started.id == again.id else "false")

        for event in client.WatchRun(pb.WatchRunRequest(id=started.id)):
            last = event.run
        print(pb.RunState.Name(last.state), "records", last.counts["processed_records"])

        try:
            client.RunBatch(pb.RunBatchRequest(worker=WORKER, database="nowhere"))
        except grpc.RpcError as error:
            info = error_info(error)
            print(error.code().name, info.reason, info.metadata["database"])


if __name__ == "__main__":
    main(*sys.argv[1:])

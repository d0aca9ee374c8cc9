// A client of caretaker in Go: it starts a run, watches it, and reads an error's details.
//
//	go run ./docs/clients/go localhost:50051 ca.crt alice.token
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/caretaker-go/caretaker/gen/maintenance/v1"
)

const worker = "loose_foreign_keys_cleanup"

func main() {
	if err := call(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func call(address, caFile, tokenFile string) error {
	tls, err := credentials.NewClientTLSFromFile(caFile, "")
	if err != nil {
		return err
	}
	token, err := os.ReadFile(tokenFile) //nolint:gosec // the user names the file
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(tls))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	client := pb.NewMaintenanceServiceClient(connection)
	ctx := metadata.AppendToOutgoingContext(context.Background(),
		"authorization", "Bearer "+strings.TrimSpace(string(token)))

	// With async the answer comes at once. The same request_id again never starts a second run, so
	// a call whose answer was lost can be repeated.
	request := &pb.RunBatchRequest{Worker: worker, Database: "main", Async: true, RequestId: "go-1"}
	started, err := client.RunBatch(ctx, request)
	if err != nil {
		return err
	}
	again, err := client.RunBatch(ctx, request)
	if err != nil {
		return err
	}
	fmt.Println("the same run:", started.GetRun().GetId() == again.GetRun().GetId())

	events, err := client.WatchRun(ctx, &pb.WatchRunRequest{Id: started.GetRun().GetId()})
	if err != nil {
		return err
	}
	var last *pb.Run
	for {
		event, err := events.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		last = event.GetRun()
	}
	fmt.Println(last.GetState(), "records", last.GetCounts()["processed_records"])

	_, err = client.RunBatch(ctx, &pb.RunBatchRequest{Worker: worker, Database: "nowhere"})
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			fmt.Println(status.Code(err), info.GetReason(), info.GetMetadata()["database"])
		}
	}
	return nil
}

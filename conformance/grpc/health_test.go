// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// Grpc-go's client of the health protocol gets the status of services and of the server.
func TestHealthClient(t *testing.T) {
	addr, _ := serveService(t, nil)
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	c := healthpb.NewHealthClient(conn)
	for _, service := range []string{"", "grpc.testing.TestService", "grpc.health.v1.Health"} {
		reply, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || reply.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("Check %q: got %v, %v", service, reply, err)
		}
	}
	if _, err = c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "none"}); status.Code(err) != codes.NotFound {
		t.Errorf("Check of an unknown service: got %v", err)
	}
	list, err := c.List(t.Context(), &healthpb.HealthListRequest{})
	must(t, err)
	for _, service := range []string{"", "grpc.testing.TestService", "grpc.health.v1.Health"} {
		if got := list.GetStatuses()[service].GetStatus(); got != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("List has %v for %q", got, service)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch, err := c.Watch(ctx, &healthpb.HealthCheckRequest{Service: "none"})
	must(t, err)
	if reply, err := watch.Recv(); err != nil || reply.GetStatus() != healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		t.Errorf("Watch of an unknown service: got %v, %v", reply, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A watcher gets NOT_SERVING before its connection gets GOAWAY.
func TestHealthWatchersLearnOfShutdownFirst(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{protobuf.Codec}, Protocols: []yodel.Protocol{http.New(nil)}})
	must(t, http.RegisterHealth(s))
	l := listen(t)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, http2.ClientPreface)
	must(t, err)
	f := http2.NewFramer(conn, conn)
	must(t, f.WriteSettings())
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":authority", "x"}, {":path", "/grpc.health.v1.Health/Watch"}, {"content-type", "application/grpc"},
	} {
		must(t, encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}))
	}
	must(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}))
	must(t, f.WriteData(1, true, binary.BigEndian.AppendUint32([]byte{0}, 0)))
	var events []string
	for {
		frame, err := f.ReadFrame()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		switch frame := frame.(type) {
		case *http2.DataFrame:
			if data := string(frame.Data()); len(data) == 0 {
				continue
			} else if events = append(events, data[len(data)-1:]); len(events) == 1 {
				stop()
			}
		case *http2.GoAwayFrame:
			events = append(events, "GOAWAY")
		}
	}
	if len(events) < 3 || events[0] != "\x01" || events[1] != "\x02" || events[2] != "GOAWAY" {
		t.Errorf("the client gets %q, want SERVING, NOT_SERVING and GOAWAY", events)
	}
	must(t, await.Value(t, ended, "the end of the server"))
}

// The descriptors of package protocol/reflection are those of grpc-go.
func TestEmbeddedDescriptors(t *testing.T) {
	want := new(descriptorpb.FileDescriptorSet)
	for _, fd := range []protoreflect.FileDescriptor{
		grpc_reflection_v1.File_grpc_reflection_v1_reflection_proto, grpc_reflection_v1alpha.File_grpc_reflection_v1alpha_reflection_proto,
		healthpb.File_grpc_health_v1_health_proto,
	} {
		want.File = append(want.GetFile(), protodesc.ToFileDescriptorProto(fd))
	}
	b, err := os.ReadFile("../../protocol/reflection/descriptors.binpb")
	must(t, err)
	got := new(descriptorpb.FileDescriptorSet)
	must(t, proto.Unmarshal(b, got))
	if !proto.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

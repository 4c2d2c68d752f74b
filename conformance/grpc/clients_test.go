// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/yodel-rpc/yodel/internal/realserver"
)

// descriptors writes the FileDescriptorSet of the services that the tests call.
func descriptors(t *testing.T) (path string) {
	t.Helper()
	var set descriptorpb.FileDescriptorSet
	known := make(map[string]bool)
	var add func(fd protoreflect.FileDescriptor)
	add = func(fd protoreflect.FileDescriptor) {
		if known[fd.Path()] {
			return
		}
		known[fd.Path()] = true
		for i := range fd.Imports().Len() {
			add(fd.Imports().Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(fd))
	}
	add(testpb.File_grpc_testing_test_proto)
	add(grpc_health_v1.File_grpc_health_v1_health_proto)
	b, err := proto.Marshal(&set)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "descriptors")
	if err = os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs a program, and returns what it printed. It fails the test unless the program succeeds.
func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	realserver.EndWithParent(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return string(out)
}

// passed fails the test unless a script has printed that n cases passed and the server saw that the
// caller canceled calls of the script.
func passed(t *testing.T, out string, n int, s *service) {
	t.Helper()
	if got := strings.Count(out, "passed "); got != n {
		t.Errorf("%d cases passed, want %d:\n%s", got, n, out)
	}
	deadline := time.Now().Add(10 * time.Second)
	for s.canceled.Load() == 0 {
		if time.Now().After(deadline) {
			t.Fatal("no handler saw that its caller canceled the call")
		}
		<-time.After(5 * time.Millisecond)
	}
}

// Python's grpcio calls a yodel server: all kinds of methods, metadata, errors, deadlines,
// cancellation, health and reflection.
func TestPython(t *testing.T) {
	python, path := realserver.Python(t, "grpcio==1.85.1", "grpcio-health-checking==1.85.1", "grpcio-reflection==1.85.1", "grpcio-status==1.85.1",
		"protobuf==7.36.2", "googleapis-common-protos==1.76.0", "typing-extensions==4.16.0")
	addr, s := serveService(t, nil)
	out := run(t, []string{"PYTHONPATH=" + path}, python, "testdata/client.py", addr, descriptors(t))
	passed(t, out, 13, s)
}

// Node.js's grpc-js and connect-node call a yodel server, connect-node by gRPC, gRPC-Web and
// Connect.
func TestNode(t *testing.T) {
	node, path := realserver.Node(t, "grpc-node")
	addr, s := serveService(t, nil)
	out := run(t, []string{"NODE_PATH=" + path}, node, "testdata/client.js", addr, descriptors(t))
	passed(t, out, 10+11+10+11+10+11, s)
}

// Grpcurl lists, describes and calls methods by reflection, with both versions of it.
func TestGrpcurl(t *testing.T) {
	tool := realserver.Tool(t, "grpcurl", "github.com/fullstorydev/grpcurl/cmd/grpcurl")
	addr, _ := serveService(t, nil)
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{addr, "list"}, []string{"grpc.health.v1.Health\n", "grpc.reflection.v1.ServerReflection\n", "grpc.testing.TestService\n"}},
		{[]string{addr, "list", "grpc.testing.TestService"}, []string{"grpc.testing.TestService.FullDuplexCall\n"}},
		{[]string{addr, "describe", "grpc.testing.TestService.UnaryCall"}, []string{"rpc UnaryCall ( .grpc.testing.SimpleRequest ) returns ( .grpc.testing.SimpleResponse )"}},
		{[]string{addr, "describe", "grpc.reflection.v1.ServerReflection"}, []string{"rpc ServerReflectionInfo ( stream"}},
		{[]string{"-d", `{"responseSize":3}`, addr, "grpc.testing.TestService/UnaryCall"}, []string{`"body": "AAAA"`}},
		{[]string{"-d", `{"responseParameters":[{"size":3},{"size":6}]}`, addr, "grpc.testing.TestService/FullDuplexCall"}, []string{`"AAAA"`, `"AAAAAAAA"`}},
		{[]string{"-d", `{"service":"grpc.testing.TestService"}`, addr, "grpc.health.v1.Health/Check"}, []string{`"status": "SERVING"`}},
		{[]string{addr, "grpc.health.v1.Health/List"}, []string{`"grpc.testing.TestService": {`}},
	} {
		out := run(t, nil, tool, append([]string{"-plaintext", "-max-time", "20"}, test.args...)...)
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%v: got\n%s, want %q", test.args, out, want)
			}
		}
	}
}

// Rust's tonic calls a yodel server: all kinds of methods, compression, metadata, errors,
// deadlines, cancellation, and many calls at once.
func TestTonic(t *testing.T) {
	if os.Getenv("YODEL_REAL") != "all" {
		t.Skip("tonic is compiled for a minute: set YODEL_REAL=all, or run make before-end")
	}
	if _, err := exec.LookPath("cargo"); err != nil {
		t.Skip("a newer cargo than that of Debian 12 is needed, such as 1.95: https://rustup.rs")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(cache, "yodel-real", "tonic")
	run(t, nil, "cargo", "build", "--release", "--locked", "--manifest-path=testdata/tonic/Cargo.toml", "--target-dir="+target)
	addr, s := serveService(t, nil)
	passed(t, run(t, nil, filepath.Join(target, "release", "client"), addr), 12, s)
}

// Curl, nghttp and h2load call a method with JSON over HTTP/2 without an upgrade from HTTP/1.
func TestClientsOfNghttp2(t *testing.T) {
	if os.Getenv("YODEL_REAL") == "" {
		t.Skip("the programs of nghttp2 are needed: set YODEL_REAL=1, or run make peer-test")
	}
	addr, _ := serveService(t, nil)
	body := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(body, []byte(`{"responseSize":3}`), 0o600); err != nil {
		t.Fatal(err)
	}
	url, kind := "http://"+addr+"/grpc.testing.TestService/UnaryCall", "content-type: application/json"
	for _, test := range []struct {
		want string
		line []string
	}{
		{`"body":"AAAA"`, []string{"curl", "--silent", "--show-error", "--http2-prior-knowledge", "--header", kind, "--data", "@" + body, url}},
		{`"body":"AAAA"`, []string{"nghttp", "--data=" + body, "--header=" + kind, url}},
		{"5000 succeeded, 0 failed, 0 errored, 0 timeout\nstatus codes: 5000 2xx", []string{"h2load", "-n5000", "-c4", "-m50", "--data=" + body, "--header=" + kind, url}},
	} {
		if out := run(t, nil, test.line[0], test.line[1:]...); !strings.Contains(strings.ReplaceAll(out, " ", ""), strings.ReplaceAll(test.want, " ", "")) {
			t.Errorf("%v: got\n%s, want %q", test.line, out, test.want)
		}
	}
}

// Ghz finds the method by reflection and loads it. All calls succeed.
func TestGhz(t *testing.T) {
	tool := realserver.Tool(t, "ghz", "github.com/bojand/ghz/cmd/ghz")
	addr, _ := serveService(t, nil)
	out := run(t, nil, tool, "--insecure", "--total", "2000", "--concurrency", "20", "--connections", "2", "--format", "json",
		"--call", "grpc.testing.TestService/UnaryCall", "--data", `{"responseSize":100}`, addr)
	var report struct {
		Count                  int
		StatusCodeDistribution map[string]int
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if report.Count != 2000 || report.StatusCodeDistribution["OK"] != 2000 {
		t.Errorf("got %+v, want 2000 calls with OK", report)
	}
}

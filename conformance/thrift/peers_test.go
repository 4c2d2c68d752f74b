// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/realserver"
)

// The tests in this file run Apache's own cross test for Python and Java, against a yodel server
// and with a yodel client.

// protocol and the next two methods return the names of the cross test.
func (v variant) protocol() string {
	return map[[2]bool]string{{false, false}: "binary", {true, false}: "compact", {false, true}: "multi", {true, true}: "multic"}[[2]bool{v.compact, v.multiplexed}]
}

func (v variant) transport() string {
	if v.framed {
		return "framed"
	}
	return "buffered"
}

func (v variant) socket() string {
	if v.tls {
		return "ip-ssl"
	}
	return "ip"
}

// crossTest calls f for each combination of the cross test, two at a time or more.
func crossTest(t *testing.T, f func(t *testing.T, v variant)) {
	for i := range 16 {
		v := variant{compact: i&1 != 0, framed: i&2 != 0, tls: i&4 != 0, multiplexed: i&8 != 0}
		t.Run(v.protocol()+"-"+v.transport()+"-"+v.socket(), func(t *testing.T) {
			t.Parallel()
			f(t, v)
		})
	}
}

// apacheKeys returns the configurations with the certificates of the cross test. Both sides demand
// that of the other. The servers of the cross test do not verify the client's: its issuer is not
// among the certificates.
func apacheKeys(t *testing.T, folder string) *certificates {
	t.Helper()
	keys := filepath.Join(folder, "keys")
	pair := func(name string) []tls.Certificate {
		pair, err := tls.LoadX509KeyPair(filepath.Join(keys, name+".crt"), filepath.Join(keys, name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{pair}
	}
	text, err := os.ReadFile(filepath.Join(keys, "CA.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		t.Fatal("CA.pem has no certificate")
	}
	return &certificates{
		server: &tls.Config{Certificates: pair("server"), ClientAuth: tls.RequireAnyClientCert},
		client: &tls.Config{Certificates: pair("client_v3"), RootCAs: roots, ServerName: "localhost"},
	}
}

// runClient runs a client of the cross test for at most a minute, and returns what it prints.
func runClient(t *testing.T, environment []string, folder, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = folder, append(os.Environ(), environment...)
	realserver.EndWithParent(cmd)
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("the client failed: %v\n%s", err, output)
	}
	return string(output)
}

// executed checks that a client has called testOneway with the argument n.
func executed(t *testing.T, oneWay <-chan int32, n int32) {
	t.Helper()
	select {
	case got := <-oneWay:
		if got != n {
			t.Errorf("testOneway had the argument %d, want %d", got, n)
		}
	case <-time.After(10 * time.Second):
		t.Error("testOneway was not executed")
	}
}

func port(t *testing.T, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// pythonArgs returns the arguments that Apache's client and server for Python have in common.
func (v variant) pythonArgs(script, port string) []string {
	args := []string{script, "--genpydir=.", "--protocol=" + v.protocol(), "--transport=" + v.transport(), "--port=" + port}
	if v.tls {
		args = append(args, "--ssl")
	}
	return args
}

func TestPythonClient(t *testing.T) {
	folder := realserver.Thrift(t)
	python, path := realserver.Python(t, realserver.ThriftPackage)
	keys := apacheKeys(t, folder)
	summary := regexp.MustCompile(`(?s)Ran (\d+) tests in .*\nOK\n$`)
	crossTest(t, func(t *testing.T, v variant) {
		addr, s := v.serve(t, keys)
		output := runClient(t, []string{"PYTHONPATH=" + path}, filepath.Join(folder, "py"), python, v.pythonArgs("TestClient.py", port(t, addr))...)
		ran := summary.FindStringSubmatch(output)
		if ran == nil {
			t.Fatalf("the client printed\n%s", output)
		}
		if n, err := strconv.Atoi(ran[1]); err != nil || n < 24 {
			t.Errorf("the client executed %d tests, %v", n, err)
		}
		executed(t, s.OneWay, 1)
		executed(t, s.OneWay, 1) // testOnewayThenNormal
	})
}

func TestPythonServer(t *testing.T) {
	folder := realserver.Thrift(t)
	python, path := realserver.Python(t, realserver.ThriftPackage)
	keys := apacheKeys(t, folder)
	crossTest(t, func(t *testing.T, v variant) {
		reported := ""
		realserver.Start(t, realserver.Program{
			Name: "Apache's server for Python",
			Find: func() (string, error) { return python, nil },
			Command: func(python, addr, data string) (*exec.Cmd, error) {
				reported = filepath.Join(data, "port")
				args := append(v.pythonArgs(filepath.Join(folder, "py", "serve.py"), "0"), "--port-file="+reported, "TThreadedServer")
				cmd := exec.Command(python, args...)
				cmd.Env = append(os.Environ(), "PYTHONPATH="+path)
				return cmd, nil
			},
			Probe: func(context.Context, string) error { return filled(reported) },
		})
		number, err := os.ReadFile(reported)
		if err != nil {
			t.Fatal(err)
		}
		checkServer(t, v, keys, string(number), "Internal error")
	})
}

// filled returns an error unless a file exists and is not empty.
func filled(path string) error {
	about, err := os.Stat(path)
	if err == nil && about.Size() == 0 {
		err = fs.ErrNotExist
	}
	return err
}

// checkServer calls a server of the cross test. Undeclared is the text of an exception that is not
// declared.
func checkServer(t *testing.T, v variant, keys *certificates, port, undeclared string) {
	t.Helper()
	client := v.calling(t, keys, net.JoinHostPort("127.0.0.1", port))
	checkYodel(t, client, undeclared)
	if v.multiplexed {
		var got string
		err := client.Call(t.Context(), "SecondService.secondtestString", new("x"), &got)
		same(t, "secondtestString", got, err, `testString("x")`)
	}
}

// javaArgs returns the arguments of Java for one of the programs in folder.
func javaArgs(folder, keyStore, class string) []string {
	return []string{
		"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
		"-Djavax.net.ssl.keyStore=" + filepath.Join(folder, "keys/java", keyStore), "-Djavax.net.ssl.keyStorePassword=thrift",
		"-Djavax.net.ssl.trustStore=" + filepath.Join(folder, "keys/java/.truststore"), "-Djavax.net.ssl.trustStorePassword=thrift",
		"-cp", filepath.Join(folder, "classes") + string(filepath.ListSeparator) + filepath.Join(folder, "lib", "*"), class,
	}
}

func TestJavaClient(t *testing.T) {
	folder := realserver.Thrift(t)
	keys := apacheKeys(t, folder)
	crossTest(t, func(t *testing.T, v variant) {
		addr, s := v.serve(t, keys)
		args := append(javaArgs(folder, ".clientkeystore", "org.apache.thrift.test.TestClient"),
			"--host=localhost", "--port="+port(t, addr), "--protocol="+v.protocol(), "--transport="+v.transport())
		if v.tls {
			args = append(args, "--ssl")
		}
		output := runClient(t, nil, folder, "java", args...)
		if !strings.Contains(output, "Success - fire and forget") || strings.Contains(output, "FAILURE") {
			t.Errorf("the client printed\n%s", output)
		}
		executed(t, s.OneWay, 3)
	})
}

func TestJavaServer(t *testing.T) {
	folder := realserver.Thrift(t)
	keys := apacheKeys(t, folder)
	reported := ""
	realserver.Start(t, realserver.Program{
		Name: "Apache's servers for Java",
		Find: func() (string, error) { return exec.LookPath("java") },
		Command: func(java, _, data string) (*exec.Cmd, error) {
			reported = filepath.Join(data, "ports")
			return exec.Command(java, append(javaArgs(folder, ".serverkeystore", "Servers"), reported)...), nil
		},
		Probe: func(context.Context, string) error { return filled(reported) },
	})
	text, err := os.ReadFile(reported)
	if err != nil {
		t.Fatal(err)
	}
	ports := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		ports[strings.Join(fields[:3], "-")] = fields[3]
	}
	crossTest(t, func(t *testing.T, v variant) {
		port, ok := ports[v.protocol()+"-"+v.transport()+"-"+v.socket()]
		if !ok {
			t.Fatalf("no server listens: %s", text)
		}
		checkServer(t, v, keys, port, "Internal error processing testException")
	})
}

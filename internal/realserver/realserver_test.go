// SPDX-License-Identifier: Apache-2.0

package realserver_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/leak"
	"github.com/yodel-rpc/yodel/internal/realserver"
)

func TestMain(m *testing.M) { leak.Verify(m) }

// redis sends a command of words without spaces and returns the first line of the answer that does
// not say how long the next one is.
func redis(addr, command string, within time.Duration) (string, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(within))
	if _, err = fmt.Fprintf(conn, "%s\r\n", command); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line), err
}

func wantAnswer(t *testing.T, addr, command, want string) {
	t.Helper()
	if got, err := redis(addr, command, 10*time.Second); err != nil || got != want {
		t.Fatalf("%s: got %q, %v, want %q", command, got, err, want)
	}
}

func TestAServerIsKilledStoppedAndStartedAgain(t *testing.T) {
	s := realserver.Redis(t)
	wantAnswer(t, s.Addr, "SET a b", "+OK")
	s.Kill()
	if _, err := redis(s.Addr, "PING", time.Second); err == nil {
		t.Error("it answers though it was killed")
	}
	s.Restart()
	wantAnswer(t, s.Addr, "EXISTS a", ":1")
	s.Stop()
	if _, err := redis(s.Addr, "PING", 100*time.Millisecond); !isTimeout(err) {
		t.Errorf("it answers though it was stopped: %v", err)
	}
	s.Continue()
	wantAnswer(t, s.Addr, "EXISTS a", ":1")
	s.RestartEmpty()
	wantAnswer(t, s.Addr, "EXISTS a", ":0")
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func TestAProxyIsABadNetwork(t *testing.T) {
	p := realserver.Between(t, realserver.Redis(t).Addr)
	wantAnswer(t, p.Addr, "SET a b", "+OK")
	p.Slow(100 * time.Millisecond)
	began := time.Now()
	wantAnswer(t, p.Addr, "EXISTS a", ":1")
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Errorf("the answer took %v, want a delay of 100ms", took)
	}
	p.Slow(0)
	p.Cut()
	if _, err := redis(p.Addr, "PING", 100*time.Millisecond); !isTimeout(err) {
		t.Errorf("something passes a network that is cut: %v", err)
	}
	p.Heal()
	wantAnswer(t, p.Addr, "EXISTS a", ":1")
}

func TestZooKeeperStarts(t *testing.T) {
	s := realserver.ZooKeeper(t)
	s.Kill()
	s.Restart()
	if err := realserver.Ask(t.Context(), s.Addr, "srvr", "Zookeeper version"); err != nil {
		t.Error(err)
	}
}

func TestEtcdStarts(t *testing.T) {
	s := realserver.Etcd(t)
	s.Kill()
	s.Restart()
	if err := realserver.Get(t.Context(), "http://"+s.Addr+"/version"); err != nil {
		t.Error(err)
	}
}

// A verdict is a test that says how it ended.
type verdict struct {
	testing.TB
	said chan string
}

func (verdict) Helper() {}

func (v verdict) Fatalf(string, ...any) {
	v.said <- "failed"
	runtime.Goexit()
}

func (v verdict) Skipf(format string, args ...any) {
	v.said <- "skipped: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestAMissingServer(t *testing.T) {
	program := func(t testing.TB) {
		realserver.Start(t, realserver.Program{Name: "Nothing", Install: "look for it", Find: func() (string, error) { return "", errors.New("not found") }})
	}
	foreign := func(t testing.TB) { realserver.Java(t, "nothing") }
	for _, test := range []struct {
		env   string
		start func(testing.TB)
		want  string
	}{
		{"", program, "skipped: Nothing is needed: set YODEL_REAL=1, or run make test-all"},
		{"1", program, "failed"},
		{"all", program, "failed"},
		{"", foreign, "skipped: Java with nothing is needed: set YODEL_REAL=all, or run make before-end"},
		{"1", foreign, "skipped: Java with nothing is needed: set YODEL_REAL=all, or run make before-end"},
		{"all", foreign, "failed"},
	} {
		t.Setenv("YODEL_REAL", test.env)
		ended := make(chan string, 1)
		go test.start(verdict{t, ended})
		if got := <-ended; got != test.want {
			t.Errorf("with YODEL_REAL=%s: %q, want %q", test.env, got, test.want)
		}
	}
}

func TestKubernetesStarts(t *testing.T) {
	s := realserver.Kubernetes(t)
	s.Kill()
	s.Restart()
	s.RestartEmpty()
}

func TestPythonHasItsPackages(t *testing.T) {
	python, path := realserver.Python(t, "ifaddr==0.2.0")
	cmd := exec.Command(python, "-c", "import ifaddr; print(len(list(ifaddr.get_adapters())) > 0)")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+path, "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "True") {
		t.Errorf("%s, %v", out, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build unix

package restart_test

import (
	"bytes"
	"context"
	stdtls "crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/restart"
	"github.com/yodel-rpc/yodel/transport/tls"
	"github.com/yodel-rpc/yodel/transport/unix"
)

// scriptVariable makes the test binary a server that does what the file of this name says, when it
// starts. What it does then, it says in lines on its standard output, which it shares with the
// other processes of its row.
const scriptVariable = "YODEL_RESTART_SCRIPT"

// A script is what a process does.
type script struct {
	Addrs        []string // a path is a unix socket
	TLS          bool
	Does         string // nothing to serve as it should
	ReadyTimeout time.Duration
}

// A Job is a call with an id of its own.
type Job struct{ ID int64 }

// A Done is the answer to a Job, with the id of the process that has carried it out.
type Done struct {
	ID int64
	By int
}

const work yodel.Method[Job, Done] = "Restart.Work"

// say writes one line, in one piece.
func say(what string, rest ...any) {
	text := fmt.Sprintln(append([]any{os.Getpid(), what}, rest...)...)
	_, _ = os.Stdout.WriteString(text)
}

// sayer makes lines of what is logged.
type sayer struct{}

func (sayer) Write(b []byte) (int, error) {
	say("log", string(bytes.TrimSpace(b)))
	return len(b), nil
}

// A crier is a registrar that says what it is told to forget.
type crier struct{}

func (crier) Announce(context.Context, string, discovery.Instance, time.Duration) error { return nil }

func (crier) Withdraw(_ context.Context, _, addr string) error {
	say("withdrew", addr)
	return nil
}

func play(name string) {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the test
		os.Exit(4)
	}()
	err := playScript(name)
	say("down", err)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func playScript(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var s script
	if err = json.Unmarshal(text, &s); err != nil {
		return err
	}
	if s.Does == "crash at once" {
		os.Exit(3)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	process, err := restart.New(&restart.Options{ReadyTimeout: s.ReadyTimeout, Logger: slog.New(slog.NewTextHandler(sayer{}, nil))})
	if err != nil {
		return err
	}
	program, err := os.Executable()
	say("program", program, err)
	if s.Does != "" {
		misbehave(s.Does)
	}
	server := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{crier{}}})
	work.Handle(server, func(_ context.Context, job *Job) (*Done, error) {
		if job.ID < 0 { // it takes until it is told to end
			end := make(chan os.Signal, 1)
			signal.Notify(end, syscall.SIGUSR2)
			say("did", job.ID)
			<-end
			return &Done{job.ID, os.Getpid()}, nil
		}
		say("did", job.ID)
		<-time.After(time.Duration(job.ID%8) * time.Millisecond)
		return &Done{job.ID, os.Getpid()}, nil
	})
	var addrs []string
	var serve []func(context.Context) error
	for _, addr := range s.Addrs {
		over := yodel.TCP
		if strings.HasPrefix(addr, "/") {
			over = unix.Transport{}
		}
		transport := process.Transport(over)
		if s.TLS {
			certificate, _ := identity()
			transport = &tls.Transport{Over: transport, Server: &stdtls.Config{Certificates: []stdtls.Certificate{certificate}}}
		}
		l, err := transport.Listen(addr)
		if err != nil {
			return err
		}
		addrs = append(addrs, l.Addr().String())
		serve = append(serve, func(ctx context.Context) error { return server.Serve(ctx, l) })
	}
	say("up", strings.Join(addrs, " "))
	return process.Run(ctx, serve...)
}

// misbehave does what a process should not do before it serves, and returns if it is to serve all
// the same.
func misbehave(does string) {
	switch does {
	case "crash":
		os.Exit(3)
	case "hang":
		signal.Reset(syscall.SIGTERM)
		say("hangs")
		select {}
	case "hang stubbornly":
		say("hangs")
		select {}
	case "wait":
		goOn := make(chan os.Signal, 1)
		signal.Notify(goOn, syscall.SIGUSR1)
		say("waits")
		<-goOn
	case "start another":
		other := exec.Command(os.Args[0])
		other.Env = append(os.Environ(), lookVariable+"=1")
		found, err := other.CombinedOutput()
		say("looked", fmt.Sprintf("%q", found), err)
	}
}

// lookVariable makes the test binary say what it has inherited from who started it.
const lookVariable = "YODEL_RESTART_LOOK"

func look() {
	fmt.Printf("YODEL_RESTART=%q", os.Getenv("YODEL_RESTART"))
	for fd := 3; fd < 20; fd++ {
		var stat syscall.Stat_t
		if err := syscall.Fstat(fd, &stat); err != nil {
			continue
		}
		switch stat.Mode & syscall.S_IFMT {
		case syscall.S_IFSOCK:
			fmt.Printf(" %d=socket", fd)
		case syscall.S_IFIFO:
			fmt.Printf(" %d=pipe", fd)
		}
	}
}

// identity is what all processes of a row show, and what their clients trust.
func identity() (stdtls.Certificate, *x509.CertPool) {
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return s.TLS.Certificates[0], pool
}

// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	etcddiscovery "github.com/rpcxio/rpcx-etcd/client"
	etcdplugin "github.com/rpcxio/rpcx-etcd/serverplugin"
	"github.com/smallnest/rpcx/client"
	"github.com/smallnest/rpcx/protocol"
	"github.com/smallnest/rpcx/server"
	"github.com/smallnest/rpcx/share"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/msgpack"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/etcd"
)

// The tests run this program again as the processes of a fleet. These variables of the environment
// say what a process does.
const (
	roleVariable = "YODEL_FLEET_ROLE" // one of the roles
	addrVariable = "YODEL_FLEET_ADDR" // where a server listens
	etcdVariable = "YODEL_FLEET_ETCD"
)

const (
	roleRPCX      = "rpcx"
	roleYodel     = "yodel"
	roleClient    = "client of rpcx"
	roleGateway   = "rpcx without a registry"
	roleTransfers = "rpcx with files and streams"
)

const (
	fleetBase    = "/rpcx_test"
	fleetCallers = 4
)

// Fleet is the service of the processes.
type Fleet struct{ role string }

// Doubled is a reply, and says which process sent it.
type Doubled struct {
	N    int
	Role string
	PID  int
}

// Double doubles a number.
func (f *Fleet) Double(_ context.Context, args *Args, reply *Doubled) error {
	*reply = Doubled{2 * args.A, f.role, os.Getpid()}
	return nil
}

// A tally counts the calls of a client.
type tally struct {
	Calls  int
	Failed int
	First  string      // the first error
	PIDs   map[int]int // calls by the process that served them

	mu sync.Mutex
}

func (a *tally) count(n int, reply *Doubled, err error) {
	if err == nil && reply.N != 2*n {
		err = fmt.Errorf("%d doubled is %d", n, reply.N)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Calls++
	if err != nil {
		if a.Failed++; a.First == "" {
			a.First = err.Error()
		}
		return
	}
	if a.PIDs == nil {
		a.PIDs = make(map[int]int)
	}
	a.PIDs[reply.PID]++
}

// encode returns the counts in JSON.
func (a *tally) encode() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, err := json.Marshal(a)
	if err != nil {
		panic(err) // a tally has nothing that JSON cannot encode
	}
	return b
}

// play is what a process of a fleet does.
func play(role string) {
	etcdAddr, addr := os.Getenv(etcdVariable), os.Getenv(addrVariable)
	var err error
	switch role {
	case roleRPCX:
		err = playRPCX(etcdAddr, addr)
	case roleYodel:
		err = playYodel(etcdAddr, addr)
	case roleGateway:
		err = playGateway(addr)
	case roleTransfers:
		err = playTransfers(addr)
	default:
		err = playClient(etcdAddr)
	}
	fmt.Fprintln(os.Stderr, role, "ends:", err)
	os.Exit(1)
}

// playRPCX is a server of rpcx that rpcx's own plug-in registers.
func playRPCX(etcdAddr, addr string) error {
	plugin := &etcdplugin.EtcdV3RegisterPlugin{
		ServiceAddress: "tcp@" + addr, EtcdServers: []string{etcdAddr}, BasePath: fleetBase, UpdateInterval: time.Second,
	}
	if err := plugin.Start(); err != nil {
		return err
	}
	s := server.NewServer()
	s.Plugins.Add(plugin)
	if err := s.RegisterName("Fleet", &Fleet{roleRPCX}, ""); err != nil {
		return err
	}
	return s.Serve("tcp", addr)
}

// playGateway is a server of rpcx with its HTTP gateway.
func playGateway(addr string) error {
	s := server.NewServer()
	s.AuthFunc = func(_ context.Context, _ *protocol.Message, token string) error {
		if token == "bad" {
			return errors.New("invalid token")
		}
		return nil
	}
	arith := newArith()
	arith.metadata = rpcxMetadata
	if err := s.RegisterName("Arith", arith, ""); err != nil {
		return err
	}
	return s.Serve("tcp", addr)
}

// playTransfers is a server of rpcx that stores files and returns them, and has a stream.
func playTransfers(addr string) error {
	var addrs [2]string // of the connections for files and for streams
	for i := range addrs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addrs[i] = l.Addr().String()
		_ = l.Close() // rpcx listens there
	}
	s := server.NewServer()
	var files sync.Map
	s.EnableFileTransfer("", server.NewFileTransfer(addrs[0], func(conn net.Conn, args *share.FileTransferArgs) {
		if args.FileName != "left open" { // handlers of rpcx should close the connection, and that of its example does not
			defer conn.Close()
		}
		b, err := io.ReadAll(conn)
		if err == nil {
			files.Store(args.FileName, fmt.Sprint(args.Meta, args.FileSize)+string(b))
		}
	}, func(conn net.Conn, args *share.DownloadFileArgs) {
		defer conn.Close()
		if text, ok := files.Load(args.FileName); ok && args.Meta["k"] == "v" {
			_, _ = io.WriteString(conn, text.(string))
		}
	}, 10))
	s.EnableStreamService("", server.NewStreamService(addrs[1], func(conn net.Conn, args *share.StreamServiceArgs) {
		defer conn.Close()
		_, _ = io.Copy(conn, io.MultiReader(strings.NewReader(args.Meta["k"]), conn))
	}, nil, 10))
	return s.Serve("tcp", addr)
}

// fleetRegistry returns yodel's registry of the fleet.
func fleetRegistry(etcdAddr string) *etcd.Registry {
	return etcd.New(etcdAddr, &etcd.Options{Options: registry.Options{Prefix: fleetBase, Layout: registry.RPCX}})
}

func playYodel(etcdAddr, addr string) error {
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{msgpack.Codec}, Protocols: []yodel.Protocol{rpcx.Protocol},
		Registrars: []discovery.Registrar{fleetRegistry(etcdAddr)}, AnnounceEvery: time.Second,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err := s.Register(&Fleet{roleYodel}); err != nil {
		return err
	}
	l, err := yodel.TCP.Listen(addr)
	if err != nil {
		return err
	}
	return s.Serve(context.Background(), l)
}

// playClient calls the fleet by XClients of rpcx, and writes its counts until its input ends.
func playClient(etcdAddr string) error {
	d, err := etcddiscovery.NewEtcdV3Discovery(fleetBase, "Fleet", []string{etcdAddr}, true, nil)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	var counts tally
	var callers sync.WaitGroup
	for range fleetCallers {
		// An XClient for each caller. The callers of a shared one move its round robin on, so that
		// the attempts of a call may all go to the dead server.
		x := client.NewXClient("Fleet", client.Failover, client.RoundRobin, d, option("msgpack"))
		callers.Go(func() {
			call(ended, &counts, func(ctx context.Context, args *Args, reply *Doubled) error {
				return x.Call(ctx, "Double", args, reply)
			})
		})
	}
	callers.Go(func() {
		for running := true; running; {
			select {
			case <-ended:
				running = false
			case <-time.After(50 * time.Millisecond):
			}
			fmt.Printf("%s\n", counts.encode())
		}
	})
	callers.Wait()
	os.Exit(0)
	return nil
}

// call makes calls until ended is closed.
func call(ended <-chan struct{}, counts *tally, do func(context.Context, *Args, *Doubled) error) {
	for n := 0; ; n++ {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		var reply Doubled
		err := do(ctx, &Args{A: n}, &reply)
		cancel()
		counts.count(n, &reply, err)
		select {
		case <-ended:
			return
		case <-time.After(time.Millisecond): // they share the processors with the servers and etcd
		}
	}
}

// process returns the command that runs a process of the fleet.
func process(program, role, etcdAddr, addr string) *exec.Cmd {
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, etcdVariable+"="+etcdAddr, addrVariable+"="+addr)
	realserver.EndWithParent(cmd)
	return cmd
}

// startServer starts a server process of the fleet.
func startServer(t *testing.T, role, etcdAddr string) *realserver.Server {
	t.Helper()
	return realserver.Start(t, realserver.Program{
		Name: "a server of " + role, Install: "nothing: this test is the program", Find: os.Executable,
		Command: func(found, addr, _ string) (*exec.Cmd, error) { return process(found, role, etcdAddr, addr), nil },
		Probe: func(ctx context.Context, addr string) error {
			conn, err := yodel.TCP.Dial(ctx, addr)
			if err == nil {
				err = conn.Close()
			}
			return err
		},
	})
}

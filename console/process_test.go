// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry/file"
	"github.com/yodel-rpc/yodel/rules"
)

// The environment of a process of a shop.
const (
	shopRole   = "YODEL_CONSOLE_SHOP_ROLE" // "orders", "web", or the version of an instance of Stock
	shopFolder = "YODEL_CONSOLE_SHOP_FOLDER"
)

// newShopOfProcesses starts a shop whose three instances of Stock, instance of Orders and caller of
// Orders are processes of their own. They find each other by a registry in a folder. The test ends
// them.
func newShopOfProcesses(t *testing.T) *shop {
	t.Helper()
	folder := t.TempDir()
	for _, role := range []string{"v1", "v1", "v2", "orders", "web"} {
		startShopProcess(t, role, folder)
	}
	return &shop{registry: file.New(folder, nil)}
}

// startShopProcess starts a process and waits until it is ready.
func startShopProcess(t *testing.T, role, folder string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), shopRole+"="+role, shopFolder+"="+folder)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 5 * time.Second
	realserver.EndWithParent(cmd)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // it is killed if the test has ended already
	})
	_, err = await.Line(bufio.NewScanner(out), "the first line of the process "+role, cmd.Process)
	must(t, err)
}

// runShopProcess is a process of a shop, until its standard input ends.
func runShopProcess(role, folder string) error {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the test
		stop()
	}()
	governed := rules.With(file.New(folder, nil), nil)
	if role == "web" {
		fmt.Println("ready")
		return buyTea(ctx, governed)
	}
	server := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true, Registrars: []discovery.Registrar{governed}, Instance: discovery.Instance{Version: role, Zone: "eu-1"}})
	var err error
	if role == "orders" {
		stock := yodel.NewClient(governed.Service("Stock"), &yodel.ClientOptions{Name: "orders"})
		defer stock.Close()
		err = server.Handle("Orders.Place", func(ctx context.Context, o *order) (*receipt, error) {
			var r receipt
			err := stock.Call(ctx, "Stock.Reserve", o, &r)
			return &r, err
		})
	} else {
		err = server.Handle("Stock.Reserve", func(_ context.Context, o *order) (*receipt, error) { return &receipt{o.Count, role}, nil })
	}
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	if err := server.Serve(ctx, l); !errors.Is(err, context.Canceled) && !errors.Is(err, yodel.ErrServerClosed) {
		return err
	}
	return nil
}

// buyTea calls Orders again and again.
func buyTea(ctx context.Context, r *rules.Rules) error {
	orders := yodel.NewClient(r.Service("Orders"), &yodel.ClientOptions{Name: "web"})
	defer orders.Close()
	tick := time.NewTicker(pauseOfShop)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = orders.Call(ctx, "Orders.Place", &order{Item: "tea", Count: 1}, nil) // some calls may fail
		case <-ctx.Done():
			return nil
		}
	}
}

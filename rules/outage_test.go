// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A moody registry fails while down is set.
type moody struct {
	*registry.Registry
	down atomic.Bool
	tick chan struct{} // ends all watches
}

func (m *moody) Kept(ctx context.Context, service, kind string, update func(records map[string][]byte)) error {
	if m.down.Load() {
		return errors.New("connection refused")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-m.tick:
			cancel()
		case <-ctx.Done():
		}
	}()
	return m.Registry.Kept(ctx, service, kind, update)
}

// A process that follows many services logs an outage of their registry in one line, and in one
// more for each minute.
func TestAnOutageIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		m := &moody{Registry: memory.New(nil), tick: make(chan struct{})}
		r := rules.With(m, &rules.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for i := range 20 {
			c := yodel.NewClient(r.Service(fmt.Sprint("S", i)), &yodel.ClientOptions{Transport: mem.New(), Logger: slog.New(slog.DiscardHandler)})
			defer c.Close()
		}
		synctest.Wait()
		m.down.Store(true)
		close(m.tick)
		time.Sleep(95 * time.Second)
		synctest.Wait()
		m.tick = make(chan struct{})
		m.down.Store(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if said := strings.Count(log.String(), "the rules cannot be read"); said != 2 {
			t.Errorf("the log says %d times that the rules cannot be read, want 2:\n%.2000s", said, &log)
		}
		if said := strings.Count(log.String(), "services=20"); said != 1 {
			t.Errorf("the log names the number of services %d times, want once:\n%.2000s", said, &log)
		}
		if said := strings.Count(log.String(), "the rules can be read again"); said != 1 {
			t.Errorf("the log says %d times that the rules can be read again, want once:\n%.2000s", said, &log)
		}
	})
}

// A program may set its default logger after it has made a server and a client with rules. Their
// lines then go to the new one, with their levels.
func TestADefaultLoggerThatIsSetLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := slog.Default()
		defer slog.SetDefault(before)
		var early, late strings.Builder
		slog.SetDefault(slog.New(slog.NewTextHandler(&early, nil)))
		m := &moody{Registry: memory.New(nil), tick: make(chan struct{})}
		m.down.Store(true)
		r := rules.With(m, nil)
		s := yodel.NewServer(&yodel.ServerOptions{Ready: func(context.Context) error { return errors.New("cold") }})
		slog.SetDefault(slog.New(slog.NewTextHandler(&late, nil)))
		if s.Ready() == nil {
			t.Error("the server is ready")
		}
		c := yodel.NewClient(r.Service("S"), &yodel.ClientOptions{Transport: mem.New()})
		synctest.Wait()
		c.Close()
		if early.Len() > 0 {
			t.Errorf("the first logger got %s", &early)
		}
		for _, want := range []string{`level=WARN msg="yodel: not ready"`, `level=WARN msg="yodel: the rules cannot be read`} {
			if !strings.Contains(late.String(), want) {
				t.Errorf("the log lacks %s: %s", want, &late)
			}
		}
	})
}

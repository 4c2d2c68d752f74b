// SPDX-License-Identifier: Apache-2.0

package source_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/source"
)

// background runs functions in the background of a test.
func background(t *testing.T) func(f func(context.Context)) bool {
	return func(f func(context.Context)) bool {
		go f(t.Context())
		return true
	}
}

func TestMessagesNameTheRegistryAndSimilarServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s source.Source
		s.SetUp("service Shop in the registry", func(context.Context) (string, []string, error) {
			time.Sleep(time.Millisecond)
			return "Shop", []string{"Shops", "Other"}, nil
		}, background(t))
		resolver := new(list)
		s.SetList(resolver, time.Second)
		before := s.Nobody()
		s.ListFirst(t.Context())
		resolver.failure = errors.New("no quorum")
		after := s.Nobody()
		if want := "no instance is known of service Shop in the registry"; before != want {
			t.Errorf("before the services are listed: %q, want %q", before, want)
		}
		if !strings.Contains(after, "Shops") || strings.Contains(after, "Other") || !strings.HasSuffix(after, "; it failed: no quorum") {
			t.Errorf("when the services are listed: %q", after)
		}
	})
}

func TestTheFirstSetWaitsForTheListForAShortTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s source.Source
		lists := 0
		s.SetUp("", func(ctx context.Context) (string, []string, error) {
			lists++
			<-ctx.Done()
			return "", nil, ctx.Err()
		}, background(t))
		began := time.Now()
		s.ListFirst(t.Context())
		s.List() // one at a time
		if took := time.Since(began); took != 250*time.Millisecond {
			t.Errorf("it waited for %v, want 250ms", took)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if lists != 1 {
			t.Errorf("the services were listed %d times at once", lists)
		}
		s.List()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if lists != 2 {
			t.Errorf("the services were listed %d times, want again after a failure", lists)
		}
	})
}

func TestAListThatEndsItsGoroutineIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s source.Source
		lists := 0
		s.SetUp("", func(context.Context) (string, []string, error) {
			lists++
			runtime.Goexit()
			return "", nil, nil
		}, background(t))
		s.ListFirst(t.Context())
		s.ListFirst(t.Context())
		if lists != 2 {
			t.Errorf("the services were listed %d times, want 2", lists)
		}
	})
}

func TestASourceWithoutServices(t *testing.T) {
	var s source.Source
	s.SetUp(strings.Repeat("x", 1000), nil, func(func(context.Context)) bool { return false })
	s.ListFirst(t.Context())
	if n := len(s.Name()); n > 130 {
		t.Errorf("the name has %d bytes", n)
	}
	var none source.Source
	none.SetUp("", func(context.Context) (string, []string, error) { return "", nil, nil }, func(func(context.Context)) bool { return false })
	none.SetList(new(list), time.Second)
	none.ListFirst(t.Context()) // the client is closed
	if got, want := none.Nobody(), "no instance is known"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

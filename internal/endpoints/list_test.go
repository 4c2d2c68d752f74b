// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/source"
)

// listed returns the addresses of the endpoints that the client keeps, sorted.
func (c *fakeClient) listed() string {
	addrs := c.list.Listed()
	slices.Sort(addrs)
	return strings.Join(addrs, "")
}

// reach resolves addresses whose servers answer, and connects to all of them.
func (c *fakeClient) reach(addrs ...string) {
	c.serve(answers, addrs...)
	for _, ep := range c.publish(addrs...) {
		ep.Demand()
	}
	synctest.Wait()
}

// keeps checks which endpoints the client keeps after a while.
func (c *fakeClient) keeps(t *testing.T, after time.Duration, want string) {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	if got := c.listed(); got != want {
		t.Errorf("the client keeps %q after %v, want %q", got, after, want)
	}
}

func TestADoubt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sets string // sizes; "!" is a failure before, "." is a minute, "w" says that endpoints are kept
		want string // D for each set that is doubtful
	}{
		"the first set":                       {"1", "-"},
		"growth":                              {"1 3 9", "---"},
		"half of the size":                    {"6 3", "--"},
		"less than half":                      {"6 2", "-D"},
		"it shrinks bit by bit":               {"6 4 3 2", "---D"},
		"it shrinks slowly":                   {"6 4 ... 3 ... 2", "----"},
		"the same set again":                  {"6 2 2", "-DD"},
		"it grows again":                      {"6 w0 w3 w5 w6 5", "-DDD--"},
		"nothing is kept any more":            {"6 w2 3", "-D-"},
		"smaller after a failure":             {"3 !2 w2 3", "-DD-"},
		"the same after a failure":            {"3 !3", "--"},
		"larger than the peak ends the doubt": {"3 w1 w4", "-D-"},
	} {
		var d doubt
		var seen []byte
		now := time.Now()
		for set := range strings.FieldsSeq(test.sets) {
			if pauses := strings.Count(set, "."); pauses > 0 {
				now = now.Add(time.Duration(pauses) * time.Minute)
				continue
			}
			size := int(set[len(set)-1] - '0')
			d.hear(now, size, set[0] == '!', set[0] == 'w')
			if d.doubtful {
				seen = append(seen, 'D')
			} else {
				seen = append(seen, '-')
			}
		}
		if got := string(seen); got != test.want {
			t.Errorf("%s: the sets %s are %s, want %s", name, test.sets, got, test.want)
		}
	}
}

func TestEndpointsThatAnswerLeaveLater(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		c.reach("a", "b", "c", "d", "e")
		if c.resolve("a", "b") { // doubtful: the others remain until the set has been confirmed for a while
			t.Error("there is no endpoint")
		}
		c.keeps(t, leaveTime-time.Second, "abcde")
		c.keeps(t, time.Second, "ab")
		c.resolve("a") // half of the set, which is not doubtful
		c.keeps(t, 0, "a")
		c.resolve("A") // it is said to be inactive
		c.keeps(t, 0, "")
		if got := strings.Join(c.left, ""); len(got) != 5 || got[4] != 'a' {
			t.Errorf("%q have left", got)
		}
	})
}

// A registry without its data evicts nobody who answers.
func TestAnEmptySetKeepsWhatAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		c.reach("a", "b", "c")
		c.resolve("a", "b", "c", "n") // n never answers
		c.keeps(t, time.Minute, "abcn")
		before := c.list.published()
		c.resolve()
		c.keeps(t, time.Hour, "abc")
		c.serve(refuses, "b")
		cut(before[1], End{Broke: true, Err: errRefused})
		c.keeps(t, leaveTime, "abc")
		c.keeps(t, 10*time.Second, "ac") // it answers no more
		c.list.published()[0].SetStranger()
		c.list.settle()
		c.keeps(t, 0, "c") // another server has its address
		c.resolve("a", "b", "c")
		c.keeps(t, 0, "abc")
		if last := c.list.published(); last[2] != before[2] || last[1] == before[1] {
			t.Error("an endpoint that was kept is another one, or one that left is the same")
		}
	})
}

func TestDeadReplacementsEvictNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		c.reach("a", "b", "c")
		c.serve(refuses, "x", "y")
		c.resolve("x", "y")
		c.keeps(t, time.Hour, "abcxy")
		if len(c.dialsTo("x")) == 0 {
			t.Error("the endpoints that the resolver reports are not dialled")
		}
		c.serve(answers, "x", "y")
		c.keeps(t, 2*time.Minute, "xy")
	})
}

func TestReplacementsThatAnswerLetTheOthersLeave(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		c.reach("a", "b", "c")
		c.serve(answers, "x", "y")
		c.resolve("x", "y", "z")
		c.keeps(t, 0, "xyz") // two of three answer
	})
}

// Changes that come while a set is built make one more set, of the newest list.
func TestOneGoroutineBuildsSets(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		c.slow = func() { time.Sleep(time.Second) }
		go c.resolve("a")
		time.Sleep(time.Millisecond)
		began := time.Now()
		c.resolve("a", "b")
		c.resolve("a", "b", "c")
		if time.Since(began) != 0 || c.list.published() != nil {
			t.Error("a report waits for the balancer")
		}
		if _, err := c.list.Await(t.Context(), time.Minute, false); err != nil || time.Since(began) != 0 {
			t.Errorf("whoever needs no set waits %v: %v", time.Since(began), err)
		}
		if known, err := c.list.Await(t.Context(), time.Millisecond, true); !known || !errors.Is(err, source.ErrLate) {
			t.Errorf("known %t, %v", known, err)
		}
		if _, err := c.list.Await(t.Context(), time.Minute, true); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := strings.Join(c.sets, " "); got != "a/a abc/abc" {
			t.Errorf("the sets were %s", got)
		}
		c.slow = nil
	})
}

func TestAwaitEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		mine := errors.New("the caller has left")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(mine)
		if known, err := c.list.Await(ctx, time.Minute, true); known || !errors.Is(err, mine) {
			t.Errorf("known %t, %v", known, err)
		}
		time.AfterFunc(time.Second, c.list.Close)
		if _, err := c.list.Await(t.Context(), time.Minute, false); !errors.Is(err, source.ErrClosed) {
			t.Errorf("on a closed client: %v", err)
		}
		if c.resolve("a") || c.list.published() != nil {
			t.Error("a closed list changes")
		}
	})
}

func TestTheFailuresOfAResolver(t *testing.T) {
	inBubble(t, func(t *testing.T, c *fakeClient) {
		for i, news := range []bool{true, false} {
			if c.list.Fail(errRefused) != news {
				t.Errorf("failure %d is news: %t", i, !news)
			}
		}
		if !c.list.Fail(errors.New("another")) {
			t.Error("another failure is no news")
		}
		if text, heard, err := c.list.Resolver(); err == nil || text != "another" || !heard.IsZero() {
			t.Errorf("got %v, %q, %v", err, text, heard)
		}
		if s := c.list.Describe(); s.Err != "another" || s.Age != 0 {
			t.Errorf("the resolver is described as %+v", s)
		}
		c.resolve()
		time.Sleep(time.Second)
		if s := c.list.Describe(); s.Err != "" || s.Age != time.Second {
			t.Errorf("the resolver that works again is described as %+v", s)
		}
		if text, heard, err := c.list.Resolver(); err != nil || text != "" || heard.IsZero() || !c.list.Fail(errRefused) {
			t.Errorf("got %v, %q, %v", err, text, heard)
		}
	})
}

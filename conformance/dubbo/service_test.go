// SPDX-License-Identifier: Apache-2.0

package dubbo_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
)

// Color is the enum com.acme.Color.
type Color string

// JavaClassName names the class.
func (Color) JavaClassName() string { return "com.acme.Color" }

// A User is a com.acme.User.
type User struct {
	ID     int64
	Name   string
	Labels []string
	Best   *User
	Color  Color
	Scores map[string]float64
}

// JavaClassName names the class.
func (User) JavaClassName() string { return "com.acme.User" }

// Greeter implements com.acme.Greeter.
type Greeter struct {
	mu   sync.Mutex
	last string
	gone chan struct{} // closed when the context of Slow has ended
}

func (*Greeter) SayHello(_ context.Context, name *string) (*string, error) {
	return new("Hello " + *name), nil
}

func (*Greeter) Add(_ context.Context, a, b int32) (int32, error) { return a + b, nil }

func (*Greeter) Sum(_ context.Context, numbers *[]int64) (*int64, error) {
	sum := int64(0)
	for _, n := range *numbers {
		sum += n
	}
	return &sum, nil
}

func (*Greeter) Rename(_ context.Context, user *User, name string) (*User, error) {
	user.Name = name
	return user, nil
}

func (*Greeter) Friends(_ context.Context, user *User) (*[]*User, error) {
	return &[]*User{user, user.Best, user}, nil
}

func (*Greeter) Count(_ context.Context, words *[]string) (*map[string]int32, error) {
	all := make(map[string]int32)
	for _, word := range *words {
		all[word]++
	}
	return &all, nil
}

func (*Greeter) Distinct(_ context.Context, words *[]string) (*[]string, error) { return words, nil }

func (*Greeter) Next(_ context.Context, color *Color) (*Color, error) {
	all := []Color{"RED", "GREEN", "BLUE"}
	return &all[(slices.Index(all, *color)+1)%3], nil
}

func (*Greeter) Tomorrow(_ context.Context, day *time.Time) (*time.Time, error) {
	return new(day.Add(24 * time.Hour)), nil
}

func (*Greeter) Reverse(_ context.Context, data *[]byte) (*[]byte, error) {
	slices.Reverse(*data)
	return data, nil
}

func (*Greeter) Twice(_ context.Context, n **int64) (**int64, error) {
	if *n == nil {
		return n, nil
	}
	return new(new(2 * **n)), nil
}

func (*Greeter) Nothing(context.Context) (*string, error) { return nil, nil }

func (*Greeter) Fail(_ context.Context, text *string) (*struct{}, error) {
	return nil, errors.New(*text)
}

func (g *Greeter) Slow(ctx context.Context, _ *int32) (*string, error) {
	<-ctx.Done()
	close(g.gone)
	return nil, ctx.Err()
}

func (g *Greeter) Note(_ context.Context, text *string) (*struct{}, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = *text
	return &struct{}{}, nil
}

func (g *Greeter) Noted(context.Context) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last, nil
}

func (*Greeter) Describe(ctx context.Context) (map[string]string, error) {
	call := yodel.CallFrom(ctx)
	call.Trailer = yodel.Metadata{"answer": "42"}
	all := map[string]string{"deadline": "none"}
	if at, ok := ctx.Deadline(); ok && time.Until(at) <= 5*time.Second {
		all["deadline"] = "soon"
	}
	maps.Copy(all, call.Metadata)
	return all, nil
}

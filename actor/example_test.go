// SPDX-License-Identifier: Apache-2.0

package actor_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/actor"
)

// region greeter
// These are a message, its answer and an actor.
type (
	Greeting struct{ Name string }
	Text     struct{ Text string }
	Greeter  struct{ greeted int }
)

func (g *Greeter) Greet(_ context.Context, m *Greeting) (*Text, error) {
	g.greeted++ // without a lock: the actor handles one message at a time
	return &Text{fmt.Sprintf("Hello %s, you are number %d", m.Name, g.greeted)}, nil
}

var greeters = actor.NewKind("Greeter", actor.Answer((*Greeter).Greet))

// endregion greeter

func host(s *actor.System, addr string) error {
	// region host
	if err := s.Listen(addr); err != nil {
		return err
	}
	_, err := greeters.Start(s, "greeter", new(Greeter), nil)
	// endregion host
	return err
}

func greet(ctx context.Context, s *actor.System, addr string) error {
	// region greet
	ref, err := s.Lookup(ctx, addr, "greeter")
	if err != nil {
		return err
	}
	text, err := actor.AskSync[Text](ctx, s, ref, &Greeting{"Ann"})
	// endregion greet
	if err == nil {
		fmt.Println(text.Text)
	}
	return err
}

func Example() {
	quiet := slog.New(slog.DiscardHandler)
	ctx := context.Background()
	server := actor.NewSystem(&actor.Options{Server: &yodel.ServerOptions{Logger: quiet}})
	defer server.Shutdown(ctx)
	client := actor.NewSystem(&actor.Options{Server: &yodel.ServerOptions{Logger: quiet}})
	defer client.Shutdown(ctx)
	if err := host(server, "127.0.0.1:0"); err != nil {
		log.Println(err)
		return
	}
	for range 2 {
		if err := greet(ctx, client, server.Addr()); err != nil {
			log.Println(err)
		}
	}
	// Output:
	// Hello Ann, you are number 1
	// Hello Ann, you are number 2
}

// region words
// A Splitter counts the words of lines, and sends the counts to the actor that is in the message.
type (
	Lines struct {
		Text []string
		To   actor.Ref // a Counter, here or elsewhere
	}
	Words    map[string]int
	Splitter struct{}
)

func (*Splitter) Lines(ctx context.Context, m *Lines) error {
	words := make(Words)
	for _, line := range m.Text {
		for word := range strings.FieldsSeq(line) {
			words[word]++
		}
	}
	return actor.In(ctx).Send(ctx, m.To, words)
}

var splitters = actor.NewKind("Splitter", actor.On((*Splitter).Lines))

// endregion words

// A Tally adds the words of all Splitters.
type (
	Tally struct{ words Words }
	Most  struct{ Word string }
)

func (c *Tally) Words(_ context.Context, m *Words) error {
	for word, n := range *m {
		c.words[word] += n
	}
	return nil
}

func (c *Tally) Most(_ context.Context, m *Most) (*int, error) {
	n := c.words[m.Word]
	return &n, nil
}

var tallies = actor.NewKind("Tally", actor.On((*Tally).Words), actor.Answer((*Tally).Most))

func Example_messagesWithoutAnAnswer() {
	ctx := context.Background()
	s := actor.NewSystem(nil)
	defer s.Shutdown(ctx)
	tally, err := tallies.Start(s, "tally", &Tally{make(Words)}, nil)
	if err != nil {
		log.Println(err)
		return
	}
	splitter, err := splitters.Start(s, "splitter", new(Splitter), nil)
	if err != nil {
		log.Println(err)
		return
	}
	lines := &Lines{Text: []string{"to be or", "not to be"}, To: tally}
	// region wait
	if _, err := actor.AskSync[struct{}](ctx, s, splitter, lines); err != nil { // the Splitter has sent the counts
		log.Println(err)
	}
	n, err := actor.AskSync[int](ctx, s, tally, &Most{"be"}) // behind these counts in the inbox
	// endregion wait
	fmt.Println(*n, err)
	// Output: 2 <nil>
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/yodel-rpc/yodel"
)

// LineEcho is a protocol of lines. A request is "Service.Method args", where args is JSON. The
// reply is "ok" and the result in JSON, or "error" and the reason. Replies come in the order of
// requests.
type LineEcho struct{}

// Name implements yodel.Protocol.
func (LineEcho) Name() string { return "lineecho" }

// Match implements yodel.Protocol. A connection begins with a name that has a dot, and a space.
func (LineEcho) Match(first []byte) (ok, more bool) {
	name, _, ended := bytes.Cut(first, []byte(" "))
	for _, b := range name {
		if b != '.' && (b|0x20 < 'a' || b|0x20 > 'z') {
			return false, false
		}
	}
	return ended && bytes.Contains(name, []byte(".")), !ended
}

// Serve implements yodel.Protocol.
func (LineEcho) Serve(_ context.Context, s *yodel.Session) error {
	last := make(chan struct{}) // closed when the reply before the next one is sent
	close(last)
	return s.Loop(func() error { // io.EOF if the client has left or the server drains
		line, err := readLine(s)
		if err != nil {
			return err
		}
		method, args, _ := strings.Cut(string(line), " ")
		v := s.Begin(method, s.Codec("json"), nil)
		v.Body, v.Reserved = []byte(args), cap(line)
		refused := v.Admit(len(line), true) // waits while too many calls are open
		before, sent := last, make(chan struct{})
		last = sent
		v.Go(func() { // another goroutine reads on, and notices when the client leaves
			defer v.End()
			defer close(sent)
			defer func() { // also if the handler ends the goroutine
				<-before
				_, _ = s.Write(reply(v)) // if it fails, the session ends
			}()
			if refused == nil {
				_ = v.Run() // reply gets the error from v
			}
		})
		return nil
	}, nil)
}

// readLine reads a request. It reserves memory as the line grows.
func readLine(s *yodel.Session) (line []byte, err error) {
	for {
		part, err := s.Reader.ReadSlice('\n')
		if len(line)+len(part) > s.Limits().MaxMessage {
			return nil, errors.New("a line is too long")
		}
		if free := cap(line) - len(line); len(part) > free {
			grown := 2 * (len(line) + len(part))
			if !s.Reserve(grown - cap(line)) {
				return nil, errors.New("the server has no memory left for a line")
			}
			line = append(make([]byte, 0, grown), line...)
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimRight(line, "\r\n"), err
		}
	}
}

// reply returns the line of a call's outcome.
func reply(v *yodel.Served) []byte {
	err := v.Outcome()
	if err == nil {
		var line []byte
		if line, _, err = v.AppendReply([]byte("ok ")); err == nil {
			return append(line, '\n')
		}
	}
	return fmt.Appendf(nil, "error %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
}

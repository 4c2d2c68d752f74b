// SPDX-License-Identifier: Apache-2.0

package pipe

import "io"

// Messages returns an iteration over the messages of a stream. It ends after the last message, or
// with an error. It continues with the next message when it is run again. A nil yield sets
// p.Reuse.
func Messages[T any](p *Pipe) func(yield func(*T, error) bool) {
	var last *T // with Reuse
	return func(yield func(*T, error) bool) {
		if yield == nil {
			p.Reuse = true
			return
		}
		for {
			msg, err := receive(p, last)
			if p.Reuse {
				last = msg
			}
			if err == io.EOF { //nolint:errorlint // bare, it is the regular end
				return
			}
			if !yield(msg, err) || err != nil {
				return
			}
		}
	}
}

// receive waits for a message. If p.Reuse is set and last is not nil, it decodes the message into
// last. It returns io.EOF after the last message.
func receive[T any](p *Pipe, last *T) (*T, error) {
	body, err := p.receive()
	if err != nil {
		return nil, err
	}
	msg := last
	if _, bytes := any(msg).(*[]byte); bytes && p.Raw && len(p.Each) == 0 {
		if !p.Reuse {
			return any(p.cut(body)).(*T), nil //nolint:forcetypeassert // its type was checked above
		}
	} else if msg != nil { // not for raw bytes, which keep their capacity
		*msg = *new(T)
	}
	if msg == nil {
		msg = new(T)
	}
	if err := p.decode(body, msg); err != nil {
		return nil, err
	}
	return msg, nil
}

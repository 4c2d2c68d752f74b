// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"io"
	"log"
	"net"

	"github.com/yodel-rpc/yodel/bench/message"
	"github.com/yodel-rpc/yodel/bench/peer"
)

func serve(addr string) (string, func(), error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // it was closed
			}
			go func() {
				defer conn.Close()
				if err := serveConn(conn); err != nil && !errors.Is(err, io.EOF) {
					log.Print(err)
				}
			}()
		}
	}()
	return l.Addr().String(), func() { l.Close() }, nil
}

// serveConn answers all requests that have come with one write.
func serveConn(conn net.Conn) error {
	var work [1]byte
	if _, err := io.ReadFull(conn, work[:]); err != nil {
		return err
	}
	in := &frames{conn: conn}
	var out []byte
	var m message.BenchmarkMessage
	for {
		if err := in.read(); err != nil {
			return err
		}
		for number, body, ok := in.next(); ok; number, body, ok = in.next() {
			begin := len(out)
			out = appendHeader(out, 0, number)
			switch work[0] {
			case peer.Message[0]:
				m.Reset()
				if err := m.UnmarshalVT(body); err != nil {
					return err
				}
				message.Answer(&m)
				out = appendMessage(out, &m)
			case peer.Echo[0]:
				out = append(out, body...)
			case peer.Kiss[0]:
				out = parseValues(body).answer().appendTo(out)
			case peer.Stream[0]:
				if err := stream(conn, out[:0], body); err != nil {
					return err
				}
				out = out[:0]
				continue
			}
			binary.LittleEndian.PutUint32(out[begin:], uint32(len(out)-begin-header))
		}
		if part, missing, ok := in.part(); ok { // an echo
			if _, err := conn.Write(append(out, part...)); err != nil {
				return err
			}
			out = out[:0]
			if err := in.through(missing, func(b []byte) error { _, err := conn.Write(b); return err }); err != nil {
				return err
			}
		}
		if len(out) > 0 {
			if _, err := conn.Write(out); err != nil {
				return err
			}
			out = out[:0]
		}
	}
}

// stream answers a request of a count and a message with so many messages.
func stream(conn net.Conn, out, request []byte) error {
	for range binary.LittleEndian.Uint64(request) {
		out = append(appendHeader(out, len(request)-8, 0), request[8:]...)
		if len(out) >= batch {
			if _, err := conn.Write(out); err != nil {
				return err
			}
			out = out[:0]
		}
	}
	_, err := conn.Write(out)
	return err
}

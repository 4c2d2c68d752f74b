// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	std "net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/conformance/refusing"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// A caller calls methods over one connection with net/http.
type caller struct {
	client *std.Client
	grpc   bool
}

func dialer(h2, grpc bool) func(net.Conn) yodel.Caller {
	return func(conn net.Conn) yodel.Caller {
		var used atomic.Bool
		transport := &std.Transport{
			Protocols:           new(std.Protocols),
			MaxConnsPerHost:     1,
			DisableCompression:  true,
			MaxIdleConnsPerHost: 1,
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				if used.Swap(true) {
					return nil, errors.New("the connection has ended")
				}
				return quietConn{conn}, nil
			},
		}
		transport.Protocols.SetHTTP1(!h2)
		transport.Protocols.SetUnencryptedHTTP2(h2)
		return &caller{&std.Client{Transport: transport}, grpc}
	}
}

// A quietConn does not acknowledge the settings of an HTTP/2 server. A client would do so at any
// time, also behind its request, and then the last bytes that it sends are not those of the
// request.
type quietConn struct{ net.Conn }

func (c quietConn) Write(b []byte) (int, error) {
	acknowledged := []byte{0, 0, 0, 4, 1, 0, 0, 0, 0} // an empty frame of the type SETTINGS with the flag ACK
	if _, err := c.Conn.Write(bytes.Replace(b, acknowledged, nil, 1)); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (c *caller) Do(ctx context.Context, call *yodel.Call) error {
	body, err := json.Marshal(call.Args)
	if err != nil {
		return err
	}
	contentType, method := "application/json", call.Method
	if c.grpc {
		if method != "Test.Absent" { // the name that middleware sees of an unknown method is as sent
			method = strings.Replace(method, ".", "/", 1)
		}
		contentType = "application/grpc+json"
		body = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	}
	r, err := std.NewRequestWithContext(ctx, std.MethodPost, "http://test/"+method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", contentType)
	for key, value := range call.Metadata {
		r.Header.Set(key, value)
	}
	if at, ok := ctx.Deadline(); ok {
		r.Header.Set("Connect-Timeout-Ms", strconv.FormatInt(time.Until(at).Milliseconds(), 10))
		r.Header.Set("Grpc-Timeout", strconv.FormatInt(time.Until(at).Milliseconds(), 10)+"m")
	}
	response, err := c.client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	reply, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if !c.grpc {
		if response.StatusCode == std.StatusOK {
			return json.Unmarshal(reply, call.Reply)
		}
		e := new(yodel.Error)
		if err := json.Unmarshal(reply, e); err != nil {
			return fmt.Errorf("%s: %w", reply, err)
		}
		return e
	}
	trailer := response.Trailer
	if len(reply) == 0 {
		trailer = response.Header // the response is Trailers-Only
	}
	code, err := strconv.Atoi(trailer.Get("Grpc-Status"))
	if err != nil {
		return fmt.Errorf("status %s, trailer %v: %w", response.Status, trailer, err)
	}
	if code != 0 {
		return &yodel.Error{Code: yodel.Code(code), Message: strings.ReplaceAll(trailer.Get("Grpc-Message"), "%25", "%")}
	}
	return json.Unmarshal(reply[5:], call.Reply)
}

func TestProtocol(t *testing.T) {
	for _, test := range []struct {
		name     string
		h2, grpc bool
	}{{"JSON over HTTP 1", false, false}, {"JSON over HTTP 2", true, false}, {"gRPC", true, true}} {
		t.Run(test.name, func(t *testing.T) {
			yodeltest.TestProtocol(t, yodeltest.Protocol{
				Protocol: http.New(nil), Codes: true, Deadlines: true, Metadata: true, OneAtATime: !test.h2, Middleware: refusing.All,
			}, dialer(test.h2, test.grpc))
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/smallnest/rpcx/client"
	"github.com/smallnest/rpcx/share"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/msgpack"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/protocol/thrift"
)

// transferSize is the size of the files.
const transferSize = 3<<20 + 5

// Clients of rpcx transfer files with a yodel server, and use its streams, on its port.
func TestRPCXClientTransfers(t *testing.T) {
	stored := make(chan string, 1)
	content := payload(transferSize)
	transfers := rpcx.NewTransfers(&rpcx.TransferOptions{
		Upload: func(_ context.Context, file *rpcx.File, from io.Reader) error {
			b, err := io.ReadAll(from)
			stored <- fmt.Sprint(file.FileName, file.FileSize, file.Meta, bytes.Equal(b, content), err)
			return err
		},
		Download: func(_ context.Context, file *rpcx.File, to io.Writer) error {
			_, err := to.Write(append([]byte(file.FileName+file.Meta["k"]), content...))
			return err
		},
		Stream: func(_ context.Context, meta map[string]string, conn net.Conn) error {
			_, err := io.Copy(conn, io.MultiReader(strings.NewReader(meta["k"]), conn))
			return err
		},
	})
	s := serveProtocols(t, "127.0.0.1:0", yodel.ServerOptions{}, transfers)
	if err := transfers.Register(s.Server); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	meta := map[string]string{"k": "v"}
	for _, codec := range []string{"json", "msgpack"} {
		x := func(service string) client.XClient {
			d, err := client.NewPeer2PeerDiscovery("tcp@"+s.addr, "")
			if err != nil {
				t.Fatal(err)
			}
			o := option(codec)
			o.ConnectTimeout = 20 * time.Second
			x := client.NewXClient(service, client.Failfast, client.RandomSelect, d, o)
			t.Cleanup(func() { _ = x.Close() }) // its connections may have ended
			return x
		}
		files := x(share.SendFileServiceName)
		if err := files.SendFile(within(t), name, 0, meta); err != nil {
			t.Fatal(err)
		}
		if got, want := await.Value(t, stored, "the stored file"), fmt.Sprint("file", transferSize, meta, true, nil); got != want {
			t.Errorf("%s: got %q, want %q", codec, got, want)
		}
		var got bytes.Buffer
		if err := files.DownloadFile(within(t), "name", &got, meta); err != nil || got.String() != "namev"+string(content) {
			t.Errorf("%s: got %d bytes, %v", codec, got.Len(), err)
		}
		conn, err := x(share.StreamServiceName).Stream(within(t), meta)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		checkEcho(t, conn)
	}
}

// No protocol of yodel begins with the first byte of a token.
func TestFirstByteOfTokens(t *testing.T) {
	for _, p := range []yodel.Protocol{rpcx.Protocol, http.New(nil), jsonrpc.Protocol, netrpc.Protocol, thrift.New(nil)} {
		if ok, more := p.Match([]byte{0xa5}); ok || more {
			t.Errorf("%s takes it", p.Name())
		}
	}
}

// checkEcho uses a stream whose other side sends "v" and then what it receives.
func checkEcho(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	b := make([]byte, len("vhello"))
	_, err := conn.Write([]byte("hello"))
	if err == nil {
		_, err = io.ReadFull(conn, b)
	}
	if err != nil || string(b) != "vhello" {
		t.Errorf("got %q, %v", b, err)
	}
}

// Yodel clients transfer files with a server of rpcx, and use its streams.
func TestYodelClientTransfers(t *testing.T) {
	s := startServer(t, roleTransfers, "")
	content := payload(transferSize)
	for name, codec := range map[string]yodel.Codec{"json": yodel.JSON, "msgpack": msgpack.Codec} {
		c := calling(t, s.Addr, yodel.ClientOptions{Wires: []yodel.Wire{rpcx.Wire(codec)}})
		meta := map[string]string{"k": "v"}
		file := &rpcx.File{FileName: name, FileSize: int64(len(content)), Meta: meta}
		if err := rpcx.SendFile(within(t), c, file, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer // the server returns what it has received under that name
		if err := rpcx.DownloadFile(within(t), c, &rpcx.File{FileName: name, Meta: meta}, &got); err != nil || got.String() != fmt.Sprint(meta, transferSize)+string(content) {
			t.Errorf("%s: got %d bytes, %v", name, got.Len(), err)
		}
		if err := rpcx.SendFile(within(t), c, &rpcx.File{FileName: "left open", FileSize: 3}, strings.NewReader("abc")); err != nil {
			t.Errorf("to a handler that leaves the connection open: %v", err)
		}
		conn, err := rpcx.OpenStream(within(t), c, meta)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		checkEcho(t, conn)
	}
}

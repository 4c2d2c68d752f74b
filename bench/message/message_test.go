// SPDX-License-Identifier: Apache-2.0

package message_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/yodel-rpc/yodel/bench/message"
)

func TestTheMessageHas581BytesAndComesBackAnswered(t *testing.T) {
	m := message.New()
	if m.SizeVT() != 581 || proto.Size(m) != 581 {
		t.Errorf("it has %d bytes by vtprotobuf, %d by protobuf, want 581", m.SizeVT(), proto.Size(m))
	}
	if message.Check(m) == nil {
		t.Error("a request was taken for a reply")
	}
	message.Answer(m)
	b, err := m.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	reply := new(message.BenchmarkMessage)
	if err := proto.Unmarshal(b, reply); err != nil || message.Check(reply) != nil {
		t.Errorf("%v, %v", err, message.Check(reply))
	}
	reply.Field102 = nil
	if message.Check(reply) == nil {
		t.Error("a reply without field102 was not noticed")
	}
}

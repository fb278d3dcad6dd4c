// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// The fields of Envoy's HotRestartMessage that are needed here.
const (
	fieldRequest   = 1
	fieldReply     = 2
	requestListen  = 1
	requestAdmin   = 2
	requestStats   = 3
	requestGoodbye = 5
	replyStats     = 3
)

// standIn replaces an old Envoy that exited before the new one had ended it. Until then
// the new Envoy asks the old one for listeners and statistics: it would wait forever for
// a lost answer, and would exit if no process received its goodbye. standIn returns
// after the goodbye, or when next has exited.
func (p *Process) standIn(ctx context.Context, old, next *child) {
	own := old.line.socket("parent", old.epoch)
	peer := &net.UnixAddr{Name: old.line.socket("child", next.epoch), Net: "unixgram"}
	// The name is a dead process's.
	_ = os.Remove(own)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: own, Net: "unixgram"})
	if err != nil {
		p.cfg.Logger.Error("the old envoy has ended early, and the agent cannot take its place: the new one will end when it misses it", "err", err)
		return
	}
	stop := make(chan struct{})
	defer close(stop)
	p.beside.Go(func() {
		select {
		case <-stop:
		case <-next.ended:
		case <-ctx.Done():
		}
		_ = conn.Close() // nothing is left to lose
	})
	// Should it wait for an answer of the dead one: this will do for any.
	answer := emptyStats()
	_, _ = conn.WriteToUnix(answer, peer) // if it has gone, the read ends
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := conn.ReadFromUnix(buffer)
		if err != nil {
			return
		}
		switch requestOf(buffer[:n]) {
		case requestListen, requestAdmin, requestStats:
			_, _ = conn.WriteToUnix(answer, peer) // as above
		case requestGoodbye:
			return
		}
	}
}

// emptyStats is a reply with no statistics in it. To an Envoy that asked for a
// listener it means that there is none.
func emptyStats() []byte {
	message := wire.Append(nil, fieldReply, wire.Append(nil, replyStats, ""))
	return append(binary.BigEndian.AppendUint64(nil, uint64(len(message))), message...)
}

var errNoRequest = errors.New("the datagram is no request")

// requestOf returns the kind of a request, 0 for anything else.
func requestOf(datagram []byte) (kind protowire.Number) {
	if len(datagram) < 8 {
		return 0
	}
	_ = wire.EachBytes(datagram[8:], errNoRequest, func(n protowire.Number, request []byte) error {
		if n != fieldRequest {
			return nil
		}
		return wire.Each(request, errNoRequest, func(f wire.Field) error {
			kind = f.Number
			return nil
		})
	})
	return kind
}

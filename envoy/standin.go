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

// Fields of Envoy's HotRestartMessage that are used here.
const (
	fieldRequest   = 1
	fieldReply     = 2
	requestListen  = 1
	requestAdmin   = 2
	requestStats   = 3
	requestGoodbye = 5
	replyStats     = 3
)

// standIn replaces an old Envoy that exited before the new one terminated it. Until then, the new
// Envoy requests listeners and statistics from the old one. It would wait forever for a lost
// response, and would exit if no process received its termination request. standIn returns after
// the termination request, or when next has exited.
func (p *Process) standIn(ctx context.Context, old, next *child) {
	own := old.line.socket("parent", old.epoch)
	peer := &net.UnixAddr{Name: old.line.socket("child", next.epoch), Net: "unixgram"}
	conn, err := replaceSocket(own)
	if err != nil {
		p.cfg.Logger.Error("the old envoy has exited early, and the agent cannot respond in its place: the new one will exit", "err", err)
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
		_ = conn.Close() // closing cannot lose data
	})
	// The new Envoy may be waiting for a response from the old one. This response suits any
	// request.
	answer := emptyStats()
	_, _ = conn.WriteToUnix(answer, peer) // if the peer has exited, the read ends
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := conn.ReadFromUnix(buffer)
		if err != nil {
			return
		}
		switch requestOf(buffer[:n]) {
		case requestListen, requestAdmin, requestStats:
			_, _ = conn.WriteToUnix(answer, peer) // see above
		case requestGoodbye:
			return
		}
	}
}

// replaceSocket returns a socket with the name of a process that has exited. The name always refers
// to a socket: an Envoy that finds none when it sends would exit.
func replaceSocket(name string) (*net.UnixConn, error) {
	other := name + "~"
	_ = os.Remove(other) // of an agent that was killed
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: other, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	if err := os.Rename(other, name); err != nil {
		_, _ = os.Remove(other), conn.Close() // the first error counts
		return nil, err
	}
	return conn, nil
}

// emptyStats returns a response without statistics. To an Envoy that requested a listener, it means
// that there is none.
func emptyStats() []byte {
	message := wire.Append(nil, fieldReply, wire.Append(nil, replyStats, ""))
	return append(binary.BigEndian.AppendUint64(nil, uint64(len(message))), message...)
}

var errNoRequest = errors.New("the datagram is not a request")

// requestOf returns the kind of a request, or 0 if the datagram is not a request.
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

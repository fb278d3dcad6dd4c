// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dnstest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"

	miekg "github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
)

// Upstream is a real DNS server on UDP and TCP. Its answers can be changed at any time.
type Upstream struct {
	udp     net.PacketConn
	tcp     net.Listener
	handler atomic.Pointer[miekg.HandlerFunc]
	asked   atomic.Int64
}

// ListenUpstream opens a server. Port 0 selects a free port. It does not answer before Handle is
// called.
func ListenUpstream(address string) (*Upstream, error) {
	const attempts = 20
	for attempt := 1; ; attempt++ {
		udp, err := net.ListenPacket("udp", address)
		if err != nil {
			return nil, err
		}
		tcp, err := net.Listen("tcp", udp.LocalAddr().String())
		if err == nil {
			u := &Upstream{udp: udp, tcp: tcp}
			u.Handle(Silent)
			return u, nil
		}
		if closed := udp.Close(); attempt == attempts || closed != nil {
			return nil, errors.Join(err, closed)
		}
	}
}

// Address returns the address of the server.
func (u *Upstream) Address() string { return u.udp.LocalAddr().String() }

// Handle changes the function that answers requests.
func (u *Upstream) Handle(h miekg.HandlerFunc) { u.handler.Store(&h) }

// Asked returns the number of requests received.
func (u *Upstream) Asked() int { return int(u.asked.Load()) }

// Run serves until ctx is done.
func (u *Upstream) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	handler := miekg.HandlerFunc(func(w miekg.ResponseWriter, r *miekg.Msg) {
		u.asked.Add(1)
		(*u.handler.Load())(w, r)
	})
	for _, server := range []*miekg.Server{{PacketConn: u.udp, Handler: handler}, {Listener: u.tcp, Handler: handler}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		g.Go(func() error {
			if err := server.ActivateAndServe(); err != nil && ctx.Err() == nil {
				return fmt.Errorf("serve DNS on %s: %w", u.Address(), err)
			}
			return nil
		})
		g.Go(func() error {
			<-started
			<-ctx.Done()
			_ = server.Shutdown() // there is nothing to do about an error
			return nil
		})
	}
	return g.Wait()
}

// Silent never answers.
func Silent(miekg.ResponseWriter, *miekg.Msg) {}

// Code returns a handler that answers every request with a response code.
func Code(code int) miekg.HandlerFunc {
	return func(w miekg.ResponseWriter, r *miekg.Msg) {
		_ = w.WriteMsg(new(miekg.Msg).SetRcode(r, code)) // the client may be gone
	}
}

// Zone returns a handler that answers with the given records, in zone file format, as many as the
// client accepts. For other names, it answers that they do not exist.
func Zone(records ...string) (miekg.HandlerFunc, error) {
	byName := map[string][]miekg.RR{}
	for _, text := range records {
		rr, err := miekg.NewRR(text)
		if err != nil {
			return nil, fmt.Errorf("record %q: %w", text, err)
		}
		name := strings.ToLower(rr.Header().Name)
		byName[name] = append(byName[name], rr)
	}
	return func(w miekg.ResponseWriter, r *miekg.Msg) {
		m := new(miekg.Msg).SetReply(r)
		m.RecursionAvailable = true
		q := r.Question[0]
		all, known := byName[strings.ToLower(q.Name)]
		if !known {
			m.Rcode = miekg.RcodeNameError
		}
		for _, rr := range all {
			if rr.Header().Rrtype == q.Qtype || q.Qtype == miekg.TypeANY {
				m.Answer = append(m.Answer, rr)
			}
		}
		limit := miekg.MinMsgSize
		if opt := r.IsEdns0(); opt != nil {
			limit = max(limit, int(opt.UDPSize()))
			m.SetEdns0(opt.UDPSize(), opt.Do())
		}
		if _, tcp := w.RemoteAddr().(*net.TCPAddr); tcp {
			limit = miekg.MaxMsgSize
		}
		m.Truncate(limit)
		_ = w.WriteMsg(m) // the client may be gone
	}, nil
}

// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lograte

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/clip"
	"github.com/outrigger-mesh/outrigger/internal/ratelimit"
)

// Default values of Config.
const (
	DefaultValue = 1024 // bytes
	defaultEvery = 10 * time.Second
	maxPeers     = 4096 // number of tracked pairs of message and peer
	maxMessages  = 512
)

// Config configures a Handler. The zero value of each field except Next means the default.
type Config struct {
	// Next writes the records. Required.
	Next slog.Handler
	// Peers are the attributes that identify the peer that caused a record; the first one present
	// is used. The default is address, identity, proxy: replicas of a workload share an identity.
	Peers []string
	// PerPeer limits a message of one peer. The default is 1 per second with a burst of 20. It does
	// not apply to records without a peer.
	PerPeer ratelimit.Limit
	// PerMessage limits a message in total, with or without a peer. The default is 20 per second
	// with a burst of 1000.
	PerMessage ratelimit.Limit
	// Messages overrides PerMessage for some messages.
	Messages map[string]ratelimit.Limit
	// MaxValue is the maximum size of an attribute value in bytes; see [Clip].
	MaxValue int
	// Every is the interval at which suppressed records are reported. The default is 10 seconds.
	Every time.Duration
	// Suppressed is called for each suppressed record. Optional.
	Suppressed func()
}

// Handler is a slog.Handler with limits. Records below slog.LevelInfo are clipped but not limited:
// these levels are off unless an operator wants all of their records.
type Handler struct {
	next   slog.Handler
	peer   string // from WithAttrs
	rank   int    // index of that attribute in Peers; len(Peers) if there is none
	nested bool   // inside a group, whose attributes are not matched with Peers
	shared *limits
}

type limits struct {
	cfg      Config
	peers    *ratelimit.Keyed[pair]
	messages *ratelimit.Keyed[string]

	mu      sync.Mutex // guards omitted
	omitted map[string]*omission
}

// pair is a message from a peer.
type pair struct{ message, peer string }

// omission counts the suppressed records of a message since the last report.
type omission struct {
	count int
	peer  string // of the last record
}

// NewHandler returns a handler that passes records to cfg.Next.
func NewHandler(cfg Config) *Handler {
	if cfg.Peers == nil {
		cfg.Peers = []string{"address", "identity", "proxy"}
	}
	if cfg.PerPeer == (ratelimit.Limit{}) {
		cfg.PerPeer = ratelimit.Limit{PerSecond: 1, Burst: 20}
	}
	if cfg.PerMessage == (ratelimit.Limit{}) {
		cfg.PerMessage = ratelimit.Limit{PerSecond: 20, Burst: 1000}
	}
	if cfg.MaxValue == 0 {
		cfg.MaxValue = DefaultValue
	}
	if cfg.Every == 0 {
		cfg.Every = defaultEvery
	}
	return &Handler{next: cfg.Next, rank: len(cfg.Peers), shared: &limits{
		cfg: cfg, peers: ratelimit.NewKeyed[pair](maxPeers), messages: ratelimit.NewKeyed[string](maxMessages), omitted: map[string]*omission{},
	}}
}

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := *h
	clipped := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clipped[i], _ = clipAttr(a, h.shared.cfg.MaxValue)
		out.note(clipped[i])
	}
	out.next = h.next.WithAttrs(clipped)
	return &out
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	out := *h
	out.next, out.nested = h.next.WithGroup(name), h.nested || name != ""
	return &out
}

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	line := *h
	attrs, changed := make([]slog.Attr, 0, r.NumAttrs()), false
	r.Attrs(func(a slog.Attr) bool {
		a, was := clipAttr(a, h.shared.cfg.MaxValue)
		attrs, changed = append(attrs, a), changed || was
		line.note(a)
		return true
	})
	message, was := clip.Changed(r.Message, h.shared.cfg.MaxValue)
	if r.Level >= slog.LevelInfo && !h.shared.allow(pair{message, line.peer}, r.Time) {
		h.shared.omit(ctx, pair{message, line.peer})
		return nil
	}
	if changed || was {
		r = slog.NewRecord(r.Time, r.Level, message, r.PC)
		r.AddAttrs(attrs...)
	}
	return h.next.Handle(ctx, r)
}

// note stores the peer if the attribute identifies one.
func (h *Handler) note(a slog.Attr) {
	if h.nested {
		return
	}
	rank := slices.Index(h.shared.cfg.Peers, a.Key)
	if rank < 0 || rank > h.rank {
		return
	}
	peer := a.Value.String()
	if host, _, err := net.SplitHostPort(peer); err == nil {
		peer = host // the port differs for each connection
	}
	if peer != "" {
		h.peer, h.rank = peer, rank
	}
}

// allow reports whether a record may be written.
func (l *limits) allow(p pair, now time.Time) bool {
	if p.peer != "" {
		if wait, _ := l.peers.Take(p, l.cfg.PerPeer, now); wait > 0 {
			return false
		}
	}
	limit, ok := l.cfg.Messages[p.message]
	if !ok {
		limit = l.cfg.PerMessage
	}
	wait, _ := l.messages.Take(p.message, limit, now)
	return wait == 0
}

// omit counts a suppressed record. The first one starts the timer of the report.
func (l *limits) omit(ctx context.Context, p pair) {
	if l.cfg.Suppressed != nil {
		l.cfg.Suppressed()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.omitted) == 0 {
		ctx = context.WithoutCancel(ctx)
		time.AfterFunc(l.cfg.Every, func() { l.report(ctx) })
	}
	o := l.omitted[p.message]
	if o == nil {
		if len(l.omitted) >= maxMessages {
			p = pair{message: "other messages"}
			o = l.omitted[p.message]
		}
		if o == nil {
			o = &omission{}
			l.omitted[p.message] = o
		}
	}
	o.count++
	o.peer = p.peer
}

// report logs how many records of each message were suppressed.
func (l *limits) report(ctx context.Context) {
	l.mu.Lock()
	omitted := l.omitted
	l.omitted = map[string]*omission{}
	l.mu.Unlock()
	for _, message := range slices.Sorted(maps.Keys(omitted)) {
		o := omitted[message]
		r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines were suppressed", 0)
		r.AddAttrs(slog.String("reason", message), slog.Int("count", o.count))
		if o.peer != "" {
			r.AddAttrs(slog.String("source", o.peer))
		}
		if l.cfg.Next.Enabled(ctx, r.Level) {
			_ = l.cfg.Next.Handle(ctx, r) // there is no place to report an error
		}
	}
}

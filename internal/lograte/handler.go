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

// Defaults of a Config.
const (
	DefaultValue = 1024 // bytes
	defaultEvery = 10 * time.Second
	maxPeers     = 4096 // pairs of message and peer that are remembered
	maxMessages  = 512
)

// Config says what a Handler passes on. The zero value of each field but Next
// means the default.
type Config struct {
	// Next writes the lines. Required.
	Next slog.Handler
	// Peers are the attributes that name who caused a line; the first one that a
	// line has counts. The default is address, identity, proxy: replicas of a
	// workload share an identity.
	Peers []string
	// PerPeer limits a message of one peer; the default is 1 a second, 20 at once.
	// Lines without a peer are not counted here.
	PerPeer ratelimit.Limit
	// PerMessage limits a message of all peers, and of none; the default is 20 a
	// second, 1000 at once.
	PerMessage ratelimit.Limit
	// Messages are limits of some messages, in the place of PerMessage.
	Messages map[string]ratelimit.Limit
	// MaxValue is the longest value of an attribute in bytes; see [Clip].
	MaxValue int
	// Every is how long the handler counts lines that it leaves out before it
	// reports them; the default is 10 seconds.
	Every time.Duration
	// Suppressed is called for each line that is left out. nil: nobody counts.
	Suppressed func()
}

// Handler is a slog.Handler with limits. Lines below slog.LevelInfo are clipped
// but not limited: they are off unless an operator wants each of them.
type Handler struct {
	next   slog.Handler
	peer   string // from WithAttrs
	rank   int    // of that attribute in Peers; len(Peers) if there is none
	nested bool   // below a group: attributes there are not those of Peers
	shared *limits
}

type limits struct {
	cfg      Config
	peers    *ratelimit.Keyed[pair]
	messages *ratelimit.Keyed[string]

	mu      sync.Mutex // guards omitted
	omitted map[string]*omission
}

// pair is a message of a peer.
type pair struct{ message, peer string }

// omission is what was left out of a message since the last report.
type omission struct {
	count int
	peer  string // of the last line
}

// NewHandler returns a handler that passes lines on to cfg.Next.
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

// note takes the peer from an attribute that names one.
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
		peer = host // each connection has another port
	}
	if peer != "" {
		h.peer, h.rank = peer, rank
	}
}

// allow reports whether a line may be written.
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

// omit counts a line that is left out. The first one starts the timer of the report.
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

// report writes how many lines of each message were left out.
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
			_ = l.cfg.Next.Handle(ctx, r) // there is nobody to report an error to
		}
	}
}

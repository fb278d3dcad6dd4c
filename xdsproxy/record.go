// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/internal/connlimit"
	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// The service to which Envoy sends access logs.
const (
	logService = "envoy.service.accesslog.v3.AccessLogService"
	methodLogs = "StreamAccessLogs"
)

// Records that wait for their reader: maxRecords is their number, maxRecord the length of one in
// bytes, as clients choose the length of headers. Others are dropped and counted.
const (
	maxRecords = 2048
	maxRecord  = 8 << 10
)

// Capture is one use of the requests that Envoy logs.
type Capture struct {
	// Lines are the requests: JSON in the form of the access log, without the end of line.
	Lines   <-chan []byte
	dropped atomic.Int64
	lines   chan<- []byte
	keep    func(*Request) bool
	claims  []string
	limit   *rate.Limiter
	end     func()
}

// Dropped returns how many requests were dropped because they are too long, exceed the rate, or
// nobody read them in time.
func (c *Capture) Dropped() int64 { return c.dropped.Load() }

// End ends the capture. Lines is not closed.
func (c *Capture) End() { c.end() }

// ErrCapture is returned while there is another capture.
var ErrCapture = errors.New("requests are already being recorded: retry when that has ended")

// Selection selects requests. The zero value selects all.
type Selection struct {
	// Keep reports whether a request is selected, and may change it. It may be nil.
	Keep func(*Request) bool
	// Claims are the names of the claims of tokens that the requests have.
	Claims []string
	// Rate is the highest number of requests in a second; 0 means no limit.
	Rate int
}

// Capture returns the selected requests that Envoy logs from now on, without bodies and credentials.
// Envoy sends them only while its runtime keys node.RecordLog and node.RecordSentLog are set.
func (p *Proxy) Capture(s Selection) (*Capture, error) { return p.records.begin(s) }

// records receives the access logs of Envoy.
type records struct {
	mu      sync.Mutex // guards current
	current *Capture   // nil if nobody records
	// unknownKey is called for each message of node.UnknownKeyLog. It must not block.
	unknownKey func()
}

func (r *records) begin(s Selection) (*Capture, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil {
		return nil, ErrCapture
	}
	lines := make(chan []byte, maxRecords)
	r.current = &Capture{Lines: lines, lines: lines, keep: s.Keep, claims: s.Claims, limit: rate.NewLimiter(rate.Inf, 0), end: func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.current = nil
	}}
	if s.Rate > 0 {
		r.current.limit = rate.NewLimiter(rate.Limit(s.Rate), s.Rate)
	}
	return r.current, nil
}

func (r *records) recording() *Capture {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// handle reads a stream of access logs until it ends. The first message has the name of the log.
func (r *records) handle(_ any, stream grpc.ServerStream) error {
	connlimit.UseOf(stream.Context())
	name := ""
	for {
		f := &frame{}
		if err := stream.RecvMsg(f); err != nil {
			return nil //nolint:nilerr // Envoy has ended the stream
		}
		message := f.data.Materialize()
		f.free()
		if name == "" {
			name = logName(message)
		}
		if name == node.UnknownKeyLog {
			r.unknownKey()
			continue
		}
		if to := r.recording(); to != nil {
			to.add(message, name == node.RecordSentLog)
		}
	}
}

var errLog = errors.New("malformed access log")

// logName returns the name of the log in a StreamAccessLogsMessage, or "".
func logName(message []byte) (name string) {
	_ = wire.EachBytes(message, errLog, func(n protowire.Number, identifier []byte) error {
		if n != wire.LogsIdentifier {
			return nil
		}
		return wire.EachBytes(identifier, errLog, func(n protowire.Number, text []byte) error {
			if n == wire.LogsName {
				name = string(text)
			}
			return nil
		})
	})
	return name
}

// add adds the requests and connections of a StreamAccessLogsMessage, which the workload sent or
// received. It ignores what it cannot read.
func (c *Capture) add(message []byte, sent bool) {
	_ = wire.EachBytes(message, errLog, func(n protowire.Number, logs []byte) error {
		read := requestOf
		switch n {
		case wire.LogsHTTP:
		case wire.LogsTCP:
			read = connectionOf
		default:
			return nil
		}
		return wire.EachBytes(logs, errLog, func(n protowire.Number, entry []byte) error {
			if n != wire.LogsHTTPEntry {
				return nil
			}
			r, err := read(entry)
			if err != nil {
				return err
			}
			if len(c.claims) > 0 && !r.Connection {
				r.setClaims(c.claims)
			}
			if r.Sent = sent; c.keep == nil || c.keep(r) {
				c.send(r)
			}
			return nil
		})
	})
}

// send hands a request to the reader of Lines, or drops it.
func (c *Capture) send(r *Request) {
	if c.limit.Allow() {
		if line := r.line(); len(line) <= maxRecord {
			select {
			case c.lines <- line:
				return
			default:
			}
		}
	}
	c.dropped.Add(1)
}

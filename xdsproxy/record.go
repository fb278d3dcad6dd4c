// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"encoding/json"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

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
	end     func()
}

// Dropped returns how many requests were dropped because they are too long, or nobody read them in
// time.
func (c *Capture) Dropped() int64 { return c.dropped.Load() }

// End ends the capture. Lines is not closed.
func (c *Capture) End() { c.end() }

// ErrCapture is returned while there is another capture.
var ErrCapture = errors.New("requests are being recorded already: try again when that has ended")

// Capture returns the requests that Envoy logs from now on, without bodies and credentials. Envoy
// sends them only while its runtime key node.RecordLog is set.
func (p *Proxy) Capture() (*Capture, error) { return p.records.begin() }

// records receives the access logs of Envoy.
type records struct {
	mu      sync.Mutex // guards current
	current *Capture   // nil if nobody records
}

func (r *records) begin() (*Capture, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil {
		return nil, ErrCapture
	}
	lines := make(chan []byte, maxRecords)
	r.current = &Capture{Lines: lines, lines: lines, end: func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.current = nil
	}}
	return r.current, nil
}

func (r *records) recording() *Capture {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// handle reads a stream of access logs until it ends.
func (r *records) handle(_ any, stream grpc.ServerStream) error {
	connlimit.UseOf(stream.Context())
	for {
		f := &frame{}
		if err := stream.RecvMsg(f); err != nil {
			return nil //nolint:nilerr // Envoy has ended the stream
		}
		if to := r.recording(); to != nil {
			to.add(f.data.Materialize())
		}
		f.free()
	}
}

var errLog = errors.New("malformed access log")

// add adds the requests of a StreamAccessLogsMessage. It ignores what it cannot read.
func (c *Capture) add(message []byte) {
	_ = wire.EachBytes(message, errLog, func(n protowire.Number, logs []byte) error {
		if n != wire.LogsHTTP {
			return nil
		}
		return wire.EachBytes(logs, errLog, func(n protowire.Number, entry []byte) error {
			if n != wire.LogsHTTPEntry {
				return nil
			}
			line, err := recordOf(entry)
			if err != nil {
				return err
			}
			lines := c.lines
			if len(line) > maxRecord {
				lines = nil
			}
			select {
			case lines <- line:
			default:
				c.dropped.Add(1)
			}
			return nil
		})
	})
}

// record is a request with the names of Istio's access log.
type record struct {
	Method       string            `json:"method"`
	Path         string            `json:"path"`
	Authority    string            `json:"authority"`
	Upstream     string            `json:"upstream_cluster,omitempty"`
	ServerName   string            `json:"requested_server_name,omitempty"`
	Local        string            `json:"downstream_local_address"`
	Remote       string            `json:"downstream_remote_address"`
	Peer         *string           `json:"downstream_peer_uri_san"` // null without a certificate
	ForwardedFor string            `json:"x_forwarded_for,omitempty"`
	UserAgent    string            `json:"user_agent,omitempty"`
	ID           string            `json:"request_id,omitempty"`
	Headers      map[string]string `json:"request_headers,omitempty"`
}

// recordOf returns the line of an HTTPAccessLogEntry. It leaves out the query of the path, which may
// hold a token.
func recordOf(entry []byte) ([]byte, error) {
	r := record{Headers: map[string]string{}}
	err := wire.EachBytes(entry, errLog, func(n protowire.Number, part []byte) error {
		switch n {
		case wire.LogEntryCommon:
			return wire.EachBytes(part, errLog, r.common)
		case wire.LogEntryRequest:
			return wire.EachBytes(part, errLog, r.request)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.Method = r.Headers[":method"]
	delete(r.Headers, ":method")
	r.Path, _, _ = strings.Cut(r.Path, "?")
	return json.Marshal(r)
}

// common reads a field of AccessLogCommon.
func (r *record) common(n protowire.Number, value []byte) (err error) {
	switch n {
	case wire.LogCommonLocal:
		r.Local, err = addressOf(value)
	case wire.LogCommonRemote:
		r.Remote, err = addressOf(value)
	case wire.LogCommonUpstream:
		r.Upstream = string(value)
	case wire.LogCommonTLS:
		err = wire.EachBytes(value, errLog, r.tls)
	}
	return err
}

// tls reads a field of TLSProperties.
func (r *record) tls(n protowire.Number, value []byte) error {
	switch n {
	case wire.LogTLSName:
		r.ServerName = string(value)
	case wire.LogTLSPeer:
		return wire.EachBytes(value, errLog, func(n protowire.Number, name []byte) error {
			if n != wire.LogPeerAltName {
				return nil
			}
			return wire.EachBytes(name, errLog, func(n protowire.Number, uri []byte) error {
				if n == wire.LogAltNameURI && r.Peer == nil {
					text := string(uri)
					r.Peer = &text
				}
				return nil
			})
		})
	}
	return nil
}

// request reads a field of HTTPRequestProperties.
func (r *record) request(n protowire.Number, value []byte) error {
	switch n {
	case wire.LogRequestAuthority:
		r.Authority = string(value)
	case wire.LogRequestPath:
		if r.Path == "" {
			r.Path = string(value)
		}
	case wire.LogRequestOriginalPath: // the route has replaced the path
		r.Path = string(value)
	case wire.LogRequestUserAgent:
		r.UserAgent = string(value)
	case wire.LogRequestForwardedFor:
		r.ForwardedFor = string(value)
	case wire.LogRequestID:
		r.ID = string(value)
	case wire.LogRequestHeaders:
		var name, text string
		err := wire.EachBytes(value, errLog, func(n protowire.Number, part []byte) error {
			switch n {
			case wire.EntryKey:
				name = string(part)
			case wire.EntryValue:
				text = string(part)
			}
			return nil
		})
		r.Headers[name] = text
		return err
	}
	return nil
}

// addressOf returns an Address as host:port, or "" if it is no socket address.
func addressOf(message []byte) (text string, err error) {
	err = wire.EachBytes(message, errLog, func(n protowire.Number, socket []byte) error {
		if n != wire.AddressSocket {
			return nil
		}
		host, port := "", uint64(0)
		err := wire.Each(socket, errLog, func(f wire.Field) error {
			switch f.Number {
			case wire.SocketAddress:
				host = string(f.Data)
			case wire.SocketPort:
				port = f.Bits
			}
			return nil
		})
		text = net.JoinHostPort(host, strconv.FormatUint(port, 10))
		return err
	})
	return text, err
}

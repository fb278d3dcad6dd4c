// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"bytes"
	"encoding/json"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// Request is a request with the names of Istio's access log. A connection to a port whose requests are
// not read has no method.
type Request struct {
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
	Claims       json.RawMessage   `json:"request_claims,omitempty"`         // those that a Selection names; null without a token
	Omitted      []string          `json:"request_claims_omitted,omitempty"` // the names of the others, sorted
	Details      string            `json:"response_code_details,omitempty"`  // only why a token is refused
	Start        time.Time         `json:"start_time,omitzero"`
	Code         uint64            `json:"response_code"` // 0 without a response
	Flags        string            `json:"response_flags"`
	Duration     float64           `json:"duration"` // milliseconds
	Received     uint64            `json:"bytes_received"`
	Returned     uint64            `json:"bytes_sent"`
	Sent         bool              `json:"sent,omitempty"` // by the workload

	Connection bool   `json:"-"`
	metadata   []byte // a Metadata
}

// flagNames returns the short names of Envoy for the fields of ResponseFlags, by number.
func flagNames() []string {
	return []string{
		"", "LH", "UH", "UT", "LR", "UR", "UF", "UC", "UO", "NR", "DI", "FI", "RL", "UAEX", "RLSE", "DC",
		"URX", "SI", "IH", "DPE", "UMSDR", "RFCF", "NFCF", "DT", "UPE", "NC", "OM", "DF", "DR",
	}
}

// connectionOf reads a TCPAccessLogEntry.
func connectionOf(entry []byte) (*Request, error) {
	r := &Request{Connection: true, Flags: "-"}
	err := wire.EachBytes(entry, errLog, func(n protowire.Number, part []byte) error {
		switch n {
		case wire.LogEntryCommon:
			return wire.EachBytes(part, errLog, r.common)
		case wire.LogEntryConnection:
			return wire.Each(part, errLog, func(f wire.Field) error {
				switch f.Number {
				case wire.LogReceived:
					r.Received = f.Bits
				case wire.LogSent:
					r.Returned = f.Bits
				}
				return nil
			})
		}
		return nil
	})
	return r, err
}

// tokenFilter is the name of the filter that stores the claims of tokens, by the key payload.
const tokenFilter = "envoy.filters.http.jwt_authn"

// setClaims sets the claims of the token that Envoy accepted: those with the given names, and who issued
// it for whom. Of the others it sets the names.
func (r *Request) setClaims(names []string) {
	claims := map[string]any{}
	err := wire.EachBytes(r.metadata, errLog, func(n protowire.Number, entry []byte) error {
		name, value, err := keyed(entry)
		if err != nil || n != wire.MetadataFilters || name != tokenFilter {
			return err
		}
		of := &structpb.Struct{}
		if err := proto.Unmarshal(value, of); err != nil {
			return err
		}
		for name, v := range of.GetFields()["payload"].GetStructValue().GetFields() {
			if name == "iss" || name == "aud" || slices.Contains(names, name) {
				claims[name] = v.AsInterface()
			} else {
				r.Omitted = append(r.Omitted, name)
			}
		}
		return nil
	})
	if err != nil {
		return // the claims are unknown
	}
	slices.Sort(r.Omitted)
	if r.Claims = json.RawMessage("null"); len(claims) > 0 {
		r.Claims, _ = json.Marshal(claims) // it is JSON already
	}
}

// requestOf reads an HTTPAccessLogEntry. It leaves out the query of the path, which may hold a token.
func requestOf(entry []byte) (*Request, error) {
	r := &Request{Headers: map[string]string{}, Flags: "-"}
	err := wire.EachBytes(entry, errLog, func(n protowire.Number, part []byte) error {
		switch n {
		case wire.LogEntryCommon:
			return wire.EachBytes(part, errLog, r.common)
		case wire.LogEntryRequest:
			return wire.Each(part, errLog, r.request)
		case wire.LogEntryResponse:
			return wire.Each(part, errLog, r.response)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.Method = r.Headers[":method"]
	delete(r.Headers, ":method")
	r.Path, _, _ = strings.Cut(r.Path, "?")
	return r, nil
}

// line returns the request as JSON.
func (r *Request) line() []byte {
	line, err := json.Marshal(r)
	if err != nil { // a time beyond the year 9999
		r.Start = time.Time{}
		line, _ = json.Marshal(r) // nothing else can fail
	}
	return line
}

// common reads a field of AccessLogCommon.
func (r *Request) common(n protowire.Number, value []byte) (err error) {
	switch n {
	case wire.LogCommonLocal:
		r.Local, err = addressOf(value)
	case wire.LogCommonRemote:
		r.Remote, err = addressOf(value)
	case wire.LogCommonUpstream:
		r.Upstream = string(value)
	case wire.LogCommonMetadata:
		r.metadata = value
	case wire.LogCommonTLS:
		err = wire.EachBytes(value, errLog, r.tls)
	case wire.LogCommonStart:
		var seconds, nanos int64
		seconds, nanos, err = timeOf(value)
		r.Start = time.Unix(seconds, nanos).UTC().Truncate(time.Millisecond)
	case wire.LogCommonDuration:
		var seconds, nanos int64
		seconds, nanos, err = timeOf(value)
		r.Duration = float64(seconds)*1e3 + math.Round(float64(nanos)/1e3)/1e3
	case wire.LogCommonFlags:
		var names []string
		err = wire.Each(value, errLog, func(f wire.Field) error {
			if all := flagNames(); f.Number > 0 && int(f.Number) < len(all) && (f.Bits != 0 || f.Type == protowire.BytesType) {
				names = append(names, all[f.Number])
			}
			return nil
		})
		if len(names) > 0 {
			r.Flags = strings.Join(slices.Compact(names), ",")
		}
	}
	return err
}

// timeOf returns the parts of a Timestamp or a Duration.
func timeOf(message []byte) (seconds, nanos int64, err error) {
	err = wire.Each(message, errLog, func(f wire.Field) error {
		switch f.Number {
		case wire.TimeSeconds:
			seconds = int64(f.Bits)
		case wire.TimeNanos:
			nanos = int64(f.Bits)
		}
		return nil
	})
	return seconds, nanos, err
}

// refusedToken begins the details of responses to requests with a token that Envoy refuses.
const refusedToken = "jwt_authn_access_denied"

// response reads a field of HTTPResponseProperties.
func (r *Request) response(f wire.Field) error {
	switch f.Number {
	case wire.LogResponseCode:
		return wire.Each(f.Data, errLog, func(code wire.Field) error {
			if code.Number == wire.WrappedValue {
				r.Code = code.Bits
			}
			return nil
		})
	case wire.LogResponseBody:
		r.Returned = f.Bits
	case wire.LogResponseDetails:
		if bytes.HasPrefix(f.Data, []byte(refusedToken)) {
			r.Details = refusedToken
		}
	}
	return nil
}

// tls reads a field of TLSProperties.
func (r *Request) tls(n protowire.Number, value []byte) error {
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
func (r *Request) request(f wire.Field) error {
	value := f.Data
	switch f.Number {
	case wire.LogRequestBody:
		r.Received = f.Bits
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
		name, text, err := keyed(value)
		r.Headers[name] = string(text)
		return err
	}
	return nil
}

// keyed reads an entry of a map.
func keyed(entry []byte) (key string, value []byte, err error) {
	err = wire.EachBytes(entry, errLog, func(n protowire.Number, part []byte) error {
		switch n {
		case wire.EntryKey:
			key = string(part)
		case wire.EntryValue:
			value = part
		}
		return nil
	})
	return key, value, err
}

// addressOf returns an Address as host:port, or "" if it is not a socket address.
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

// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	dataaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// logOf returns the message that Envoy sends to log a request.
func logOf(tb testing.TB, entry *dataaccesslogv3.HTTPAccessLogEntry) []byte {
	tb.Helper()
	message, err := proto.Marshal(&accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{
		HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: []*dataaccesslogv3.HTTPAccessLogEntry{entry}},
	}})
	if err != nil {
		tb.Fatal(err)
	}
	return message
}

func socketOf(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// logged returns an entry with all recorded fields and others.
func logged() *dataaccesslogv3.HTTPAccessLogEntry {
	uri := &dataaccesslogv3.TLSProperties_CertificateProperties_SubjectAltName{
		San: &dataaccesslogv3.TLSProperties_CertificateProperties_SubjectAltName_Uri{Uri: "spiffe://mesh/ns/shop/sa/web"},
	}
	return &dataaccesslogv3.HTTPAccessLogEntry{
		CommonProperties: &dataaccesslogv3.AccessLogCommon{
			DownstreamRemoteAddress: socketOf("192.0.2.9", 9), DownstreamDirectRemoteAddress: socketOf("fd00::7", 40000),
			DownstreamLocalAddress: socketOf("10.0.0.1", 8080), UpstreamCluster: "inbound|8080||",
			StartTime: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 6_789_000, time.UTC)), Duration: durationpb.New(time.Second + 2500*time.Microsecond),
			ResponseFlags: &dataaccesslogv3.ResponseFlags{
				UpstreamConnectionFailure: true, UnauthorizedDetails: &dataaccesslogv3.ResponseFlags_Unauthorized{}, DownstreamRemoteReset: true,
			},
			TlsProperties: &dataaccesslogv3.TLSProperties{
				TlsSniHostname: "catalog", PeerCertificateProperties: &dataaccesslogv3.TLSProperties_CertificateProperties{
					SubjectAltName: []*dataaccesslogv3.TLSProperties_CertificateProperties_SubjectAltName{uri},
				},
			},
		},
		Request: &dataaccesslogv3.HTTPRequestProperties{
			Authority: "catalog", Path: "/rewritten", OriginalPath: "/items?token=secret", UserAgent: "curl", ForwardedFor: "10.0.0.7", RequestId: "1", Referer: "secret",
			RequestHeaders: map[string]string{":method": "PURGE", "x-team": "red"}, RequestBodyBytes: 12,
		},
		Response: &dataaccesslogv3.HTTPResponseProperties{ResponseCode: wrapperspb.UInt32(503), ResponseBodyBytes: 34},
	}
}

const wantRecord = `{"method":"PURGE","path":"/items","authority":"catalog","upstream_cluster":"inbound|8080||","requested_server_name":"catalog",` +
	`"downstream_local_address":"10.0.0.1:8080","downstream_remote_address":"[fd00::7]:40000","downstream_peer_uri_san":"spiffe://mesh/ns/shop/sa/web",` +
	`"x_forwarded_for":"10.0.0.7","user_agent":"curl","request_id":"1","request_headers":{"x-team":"red"},` +
	`"start_time":"2026-01-02T03:04:05.006Z","response_code":503,"response_flags":"UF,UAEX,DR","duration":1002.5,"bytes_received":12,"bytes_sent":34}`

func TestCapture(t *testing.T) {
	t.Parallel()
	p := &Proxy{}
	message := logOf(t, logged())
	c, err := p.Capture(Selection{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Capture(Selection{}); !errors.Is(err, ErrCapture) {
		t.Errorf("a second capture: %v", err)
	}
	c.add(message, false)
	if line := <-c.Lines; string(line) != wantRecord {
		t.Errorf("got  %s\nwant %s", line, wantRecord)
	}
	c.add(message[:len(message)-1], false)
	if n := len(c.Lines); n > 0 {
		t.Errorf("%d records of a malformed message", n)
	}
	for range maxRecords + 3 {
		c.add(message, false)
	}
	if n, dropped := len(c.Lines), c.Dropped(); n != maxRecords || dropped != 3 {
		t.Errorf("%d records wait, %d are dropped", n, dropped)
	}
	for len(c.Lines) > 0 {
		<-c.Lines
	}
	long := logged()
	long.Request.RequestHeaders["x-team"] = strings.Repeat("x", maxRecord)
	c.add(logOf(t, long), false)
	if n, dropped := len(c.Lines), c.Dropped(); n != 0 || dropped != 4 {
		t.Errorf("a long record: %d wait, %d are dropped", n, dropped)
	}
	c.End()
	if c, err = p.Capture(Selection{}); err != nil {
		t.Errorf("after the end of the first capture: %v", err)
	}
	c.add(logOf(t, &dataaccesslogv3.HTTPAccessLogEntry{}), false)
	if line := <-c.Lines; string(line) != `{"method":"","path":"","authority":"","downstream_local_address":"","downstream_remote_address":"","downstream_peer_uri_san":null,"response_code":0,"response_flags":"-","duration":0,"bytes_received":0,"bytes_sent":0}` {
		t.Errorf("an empty entry: %s", line)
	}
}

// TestSelection checks that only selected requests are captured, including those of the other log,
// and at a limited rate.
func TestSelection(t *testing.T) {
	t.Parallel()
	p := &Proxy{}
	c, err := p.Capture(Selection{Rate: 2, Keep: func(r *Request) bool { r.Headers = nil; return r.Sent }})
	if err != nil {
		t.Fatal(err)
	}
	message := logOf(t, logged())
	c.add(message, false)
	if n, dropped := len(c.Lines), c.Dropped(); n != 0 || dropped != 0 {
		t.Errorf("a request that is not selected: %d wait, %d are dropped", n, dropped)
	}
	const added = 1000
	for range added {
		c.add(message, true)
	}
	if n, dropped := len(c.Lines), c.Dropped(); n < 2 || n+int(dropped) != added || dropped == 0 {
		t.Errorf("%d records wait, %d are dropped", n, dropped)
	}
	if line := string(<-c.Lines); !strings.Contains(line, `"sent":true`) || strings.Contains(line, "x-team") {
		t.Errorf("a request that was sent: %s", line)
	}
	year := logged()
	year.CommonProperties.StartTime = &timestamppb.Timestamp{Seconds: 1 << 60}
	if r, err := requestOf(marshal(t, year)); err != nil || !json.Valid(r.line()) {
		t.Errorf("a time that cannot be: %v", err)
	}
}

// TestCaptureTokens checks what is captured of tokens, and of connections.
func TestCaptureTokens(t *testing.T) {
	t.Parallel()
	p := &Proxy{}
	c, err := p.Capture(Selection{Claims: []string{"groups", "absent"}})
	if err != nil {
		t.Fatal(err)
	}
	payload, err := structpb.NewStruct(map[string]any{"payload": map[string]any{
		"iss": "users", "sub": "ann", "email": "secret", "groups": []any{"staff", 7},
	}})
	if err != nil {
		t.Fatal(err)
	}
	entry := logged()
	entry.CommonProperties.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{tokenFilter: payload, "other": payload}}
	c.add(logOf(t, entry), false)
	if line := string(<-c.Lines); !strings.Contains(line, `,"request_claims":{"groups":["staff",7],"iss":"users"},"request_claims_omitted":["email","sub"],`) || strings.Contains(line, "secret") {
		t.Errorf("a valid token: %s", line)
	}
	entry = logged()
	entry.Response.ResponseCodeDetails = "jwt_authn_access_denied{Jwt_is_expired}"
	c.add(logOf(t, entry), false)
	if line := string(<-c.Lines); !strings.Contains(line, `,"request_claims":null,"response_code_details":"jwt_authn_access_denied",`) {
		t.Errorf("an invalid token: %s", line)
	}
	c.add(marshal(t, &accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_TcpLogs{
		TcpLogs: &accesslogv3.StreamAccessLogsMessage_TCPAccessLogEntries{LogEntry: []*dataaccesslogv3.TCPAccessLogEntry{{
			CommonProperties: logged().GetCommonProperties(), ConnectionProperties: &dataaccesslogv3.ConnectionProperties{ReceivedBytes: 5, SentBytes: 6},
		}}},
	}}), false)
	const want = `{"method":"","path":"","authority":"","upstream_cluster":"inbound|8080||","requested_server_name":"catalog","downstream_local_address":"10.0.0.1:8080",` +
		`"downstream_remote_address":"[fd00::7]:40000","downstream_peer_uri_san":"spiffe://mesh/ns/shop/sa/web","start_time":"2026-01-02T03:04:05.006Z",` +
		`"response_code":0,"response_flags":"UF,UAEX,DR","duration":1002.5,"bytes_received":5,"bytes_sent":6}`
	if line := string(<-c.Lines); line != want {
		t.Errorf("a connection: got  %s\nwant %s", line, want)
	}
}

func marshal(t *testing.T, message proto.Message) []byte {
	t.Helper()
	raw, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestFlagNames checks that there is a name for each of Envoy's response flags.
func TestFlagNames(t *testing.T) {
	t.Parallel()
	fields := (&dataaccesslogv3.ResponseFlags{}).ProtoReflect().Descriptor().Fields()
	if names := flagNames(); len(names)-1 != fields.Len() {
		t.Errorf("%d names of %d flags", len(names)-1, fields.Len())
	}
}

func FuzzCapture(f *testing.F) {
	f.Add(logOf(f, logged()))
	f.Fuzz(func(t *testing.T, message []byte) {
		p := &Proxy{}
		c, err := p.Capture(Selection{})
		if err != nil {
			t.Fatal(err)
		}
		c.add(message, false)
		for range len(c.Lines) {
			if line := <-c.Lines; !json.Valid(line) {
				t.Errorf("not JSON: %s", line)
			}
		}
	})
}

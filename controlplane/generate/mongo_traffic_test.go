// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// mongoMessage returns a message of MongoDB's wire protocol. Numbers are int32, texts end with a zero.
func mongoMessage(t *testing.T, id, responds, operation int32, parts ...any) []byte {
	t.Helper()
	var body bytes.Buffer
	for _, p := range append([]any{id, responds, operation}, parts...) {
		if text, ok := p.(string); ok {
			p = append([]byte(text), 0)
		}
		if err := binary.Write(&body, binary.LittleEndian, p); err != nil {
			t.Fatal(err)
		}
	}
	return append(binary.LittleEndian.AppendUint32(nil, uint32(body.Len()+4)), body.Bytes()...)
}

// TestEnvoyMongo sends a query to a server of MongoDB, of which Envoy counts the operations.
func TestEnvoyMongo(t *testing.T) {
	t.Parallel()
	empty := []byte{5, 0, 0, 0, 0} // a document
	query := mongoMessage(t, 7, 0, 2004, int32(0), "shop.carts", int32(0), int32(1), empty)
	reply := mongoMessage(t, 8, 7, 1, int32(0), int64(0), int32(0), int32(1), empty)

	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	go func() { // answers one query
		conn, err := server.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }() // it was written to
		if _, err := io.ReadFull(conn, make([]byte, len(query))); err == nil {
			_, _ = conn.Write(reply) // the client detects missing data
		}
		_, _ = conn.Read(make([]byte, 1)) // until the client closes
	}()
	const address = "127.77.56.94"
	_, in, admin := recordingOf(t, address, `
kind: ServiceEntry
metadata: {name: mongo, namespace: default}
spec:
  hosts: [mongo.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: PORT_IN, targetPort: PORT_SERVER, name: mongo, protocol: MONGO}]
  endpoints: [{address: 127.0.0.1}]
---
kind: Sidecar
metadata: {name: default, namespace: default}
spec: {egress: [{port: {number: PORT_IN, protocol: MONGO, name: mongo}, hosts: [./mongo.example.com]}]}
`, "", strings.NewReplacer("PORT_SERVER", portOf(t, server.Addr())))
	at := strings.TrimSuffix(strings.TrimPrefix(in, "http://"), "/in")
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // the answer was read
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(query); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(reply))
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, reply) {
		t.Fatalf("the answer is %x (%v), want %x", got, err, reply)
	}
	_, port, _ := strings.Cut(at, ":")
	for name, want := range map[string]int{"op_query": 1, "op_reply": 1, "collection.carts.query.total": 1, "decoding_error": 0} {
		if got := counter(t, admin, "mongo.outbound|"+port+"||mongo.example.com."+name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ratelimit

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// TestMongo has a client write and read through Envoy's filter of MongoDB. Clients of today send
// OP_MSG, which the filter does not decode: it counts an error and forwards all that follows.
func TestMongo(t *testing.T) {
	const address = "127.77.91.3"
	var ports [2]string
	for i := range ports {
		var err error
		if ports[i], err = ownnet.FreePort(address); err != nil {
			t.Fatal(err)
		}
	}
	number, err := strconv.ParseUint(ports[0], 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	database, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = database.Close() }) // Accept returns then
	go serveMongo(t, database)
	at := database.Addr().(*net.TCPAddr)
	config := map[string]any{}
	if err := json.Unmarshal(bootstrap(t, address, &networkingv1alpha3.ServiceEntry{
		Hosts: []string{"carts.example.com"}, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
		Ports:     []*networkingv1alpha3.ServicePort{{Number: uint32(number), Name: "mongo", Protocol: "MONGO"}},
		Endpoints: []*networkingv1alpha3.WorkloadEntry{{Address: at.IP.String(), Ports: map[string]uint32{"mongo": uint32(at.Port)}}},
	}, &networkingv1alpha3.Sidecar{Egress: []*networkingv1alpha3.IstioEgressListener{{
		Port: &networkingv1alpha3.SidecarPort{Number: uint32(number), Name: "mongo", Protocol: "MONGO"}, Hosts: []string{"./*"},
	}}}), &config); err != nil {
		t.Fatal(err)
	}
	adminPort, err := strconv.Atoi(ports[1])
	if err != nil {
		t.Fatal(err)
	}
	config["admin"] = map[string]any{"address": map[string]any{"socket_address": map[string]any{"address": address, "port_value": adminPort}}}
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	runEnvoy(t, net.JoinHostPort(address, ports[0]), b)

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + net.JoinHostPort(address, ports[0]) + "/?directConnection=true&serverSelectionTimeoutMS=120000"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }) // the answers were read
	carts := client.Database("shop").Collection("carts")
	if _, err := carts.InsertOne(ctx, bson.D{{Key: "item", Value: "lamp"}}); err != nil {
		t.Fatal(err)
	}
	var got struct{ Item string }
	if err := carts.FindOne(ctx, bson.D{}).Decode(&got); err != nil || got.Item != "lamp" {
		t.Errorf("the cart has %q (%v), want a lamp", got.Item, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(address, ports[1])+"/stats?filter=^mongo", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }() // it was read
	stats, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`\.decoding_error: [1-9]`, `\.op_insert: 0`} {
		if !regexp.MustCompile(want).Match(stats) {
			t.Errorf("the counters lack %s:\n%s", want, stats)
		}
	}
}

// serveMongo serves as a server of MongoDB with one document.
func serveMongo(t *testing.T, listener net.Listener) {
	stored := make(chan bsoncore.Document, 1)
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // it is closed
		}
		go func() {
			defer func() { _ = conn.Close() }() // the client detects missing data
			for id := int32(1); ; id++ {
				head := make([]byte, 16)
				if _, err := io.ReadFull(conn, head); err != nil {
					return // the client has closed
				}
				length := binary.LittleEndian.Uint32(head)
				if length < 16 || length > 1<<20 {
					t.Errorf("a message of %d bytes", length)
					return
				}
				message := append(head, make([]byte, length-16)...)
				if _, err := io.ReadFull(conn, message[16:]); err != nil {
					return
				}
				answer, err := answerMongo(id, message, stored)
				if err != nil {
					t.Errorf("%v: %x", err, message)
					return
				}
				if _, err := conn.Write(answer); err != nil {
					return
				}
			}
		}()
	}
}

// opQuery is the operation in which clients greet a server that they do not know.
const opQuery wiremessage.OpCode = 2004

// answerMongo returns the answer to a message.
func answerMongo(id int32, message []byte, stored chan bsoncore.Document) ([]byte, error) {
	_, request, _, code, rest, ok := wiremessage.ReadHeader(message)
	if !ok {
		return nil, errors.New("it has no header")
	}
	if code == opQuery { // the greeting
		start, out := wiremessage.AppendHeaderStart(nil, id, request, wiremessage.OpReply)
		out = wiremessage.AppendReplyCursorID(wiremessage.AppendReplyFlags(out, 0), 0)
		out = wiremessage.AppendReplyNumberReturned(wiremessage.AppendReplyStartingFrom(out, 0), 1)
		out = append(out, greeting()...)
		return bsoncore.UpdateLength(out, start, int32(len(out))), nil
	}
	if code != wiremessage.OpMsg {
		return nil, fmt.Errorf("the operation is %s", code)
	}
	_, rest, ok = wiremessage.ReadMsgFlags(rest)
	var command bsoncore.Document
	for ok && len(rest) > 0 {
		var kind wiremessage.SectionType
		if kind, rest, ok = wiremessage.ReadMsgSectionType(rest); !ok {
			break
		}
		if kind == wiremessage.SingleDocument {
			command, rest, ok = wiremessage.ReadMsgSectionSingleDocument(rest)
			continue
		}
		var documents []bsoncore.Document
		if _, documents, rest, ok = wiremessage.ReadMsgSectionDocumentSequence(rest); ok && len(documents) == 1 {
			stored <- documents[0]
		}
	}
	first, err := command.IndexErr(0)
	if !ok || err != nil {
		return nil, errors.New("it is incomplete")
	}
	answer := bsoncore.NewDocumentBuilder().AppendInt32("ok", 1)
	switch first.Key() {
	case "hello", "ismaster":
		answer = nil
	case "insert":
		answer.AppendInt32("n", 1)
	case "find":
		batch := bsoncore.NewArrayBuilder().AppendDocument(<-stored).Build()
		answer.AppendDocument("cursor", bsoncore.NewDocumentBuilder().AppendArray("firstBatch", batch).AppendInt64("id", 0).AppendString("ns", "shop.carts").Build())
	}
	document := greeting()
	if answer != nil {
		document = answer.Build()
	}
	start, out := wiremessage.AppendHeaderStart(nil, id, request, wiremessage.OpMsg)
	out = append(wiremessage.AppendMsgSectionType(wiremessage.AppendMsgFlags(out, 0), wiremessage.SingleDocument), document...)
	return bsoncore.UpdateLength(out, start, int32(len(out))), nil
}

// greeting returns what a server says of itself.
func greeting() bsoncore.Document {
	return bsoncore.NewDocumentBuilder().AppendBoolean("ismaster", true).AppendBoolean("helloOk", true).AppendInt32("maxBsonObjectSize", 1<<24).
		AppendInt32("maxMessageSizeBytes", 48000000).AppendInt32("maxWriteBatchSize", 1000).AppendInt32("minWireVersion", 0).AppendInt32("maxWireVersion", 21).
		AppendInt32("ok", 1).Build()
}

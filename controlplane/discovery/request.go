// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/internal/clip"
	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// request is what both kinds of discovery request have in common.
type request struct {
	node    *corev3.Node
	typeURL string
	nonce   string
	// rejected is Envoy's reason for refusing the response of the nonce;
	// message is the text in it.
	rejected, message string
	// subscribe and unsubscribe change the subscription (delta).
	subscribe, unsubscribe []string
	// versions is what the proxy has, by name (delta).
	versions map[string]string
	// version is what the proxy has (state of the world).
	version string
	// named is how many names the subscription has (state of the world), and
	// asked a hash of them in which their order does not count. Each answer
	// of a proxy repeats its hundreds of names, so they are listed from body
	// only when the hash is new.
	named int
	asked uint64
	body  []byte
	// total is how many names it has in all, and size how many bytes.
	total, size int
	// wanted is about how many bytes the names take that it subscribes to.
	wanted int
	// free gives body back; nothing else of the request lives in it.
	free func()
}

var errMalformed = errors.New("the request is no protobuf message")

// eachField calls fn for every length-delimited field of a message.
func eachField(b []byte, fn func(protowire.Number, []byte) error) error {
	return wire.EachBytes(b, errMalformed, fn)
}

// readSotW reads a DiscoveryRequest. It keeps b.
func readSotW(b []byte) (*request, error) {
	q := &request{body: b, size: len(b)}
	err := eachField(b, func(n protowire.Number, v []byte) (err error) {
		switch n {
		case wire.RequestVersion:
			err = word(&q.version, "version_info", v)
		case wire.RequestNode:
			err = q.readNode(v)
		case wire.RequestNames:
			q.named++
			q.asked += xxhash.Sum64(v)
			q.wanted += len(v) + perName
			err = q.count(v)
		case wire.RequestTypeURL:
			err = word(&q.typeURL, "type_url", v)
		case wire.RequestNonce:
			err = word(&q.nonce, "response_nonce", v)
		case wire.RequestError:
			err = q.readRejection(v)
		}
		return err
	})
	return q, err
}

// names lists the names of a state-of-the-world request.
func (q *request) names() []string {
	names := make([]string, 0, q.named)
	// The body was read once without an error.
	_ = eachField(q.body, func(n protowire.Number, v []byte) error {
		if n == wire.RequestNames {
			names = append(names, string(v))
		}
		return nil
	})
	return names
}

// readDelta reads a DeltaDiscoveryRequest.
func readDelta(b []byte) (*request, error) {
	q := &request{size: len(b)}
	err := eachField(b, func(n protowire.Number, v []byte) (err error) {
		switch n {
		case wire.DeltaRequestNode:
			err = q.readNode(v)
		case wire.DeltaRequestTypeURL:
			err = word(&q.typeURL, "type_url", v)
		case wire.DeltaRequestSubscribe:
			q.wanted += len(v) + perName
			q.subscribe, err = append(q.subscribe, string(v)), q.count(v)
		case wire.DeltaRequestUnsubscribe:
			q.unsubscribe, err = append(q.unsubscribe, string(v)), q.count(v)
		case wire.DeltaRequestVersions:
			err = q.readVersion(v)
		case wire.DeltaRequestNonce:
			err = word(&q.nonce, "response_nonce", v)
		case wire.DeltaRequestError:
			err = q.readRejection(v)
		}
		return err
	})
	return q, err
}

func (q *request) readNode(b []byte) error {
	if len(b) > maxNode {
		return tooLarge("bytes of the node", len(b), maxNode)
	}
	q.node = &corev3.Node{}
	if err := proto.Unmarshal(b, q.node); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	return nil
}

func (q *request) readRejection(b []byte) error {
	var s rpcstatus.Status
	if err := proto.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("error_detail: %w", err)
	}
	q.message = clip.Text(s.GetMessage(), maxRejection)
	q.rejected = fmt.Sprintf("code %d: %s", s.GetCode(), q.message)
	return nil
}

// readVersion reads one entry of initial_resource_versions.
func (q *request) readVersion(b []byte) error {
	var name, version string
	err := eachField(b, func(n protowire.Number, v []byte) error {
		switch n {
		case wire.EntryKey:
			name = string(v)
			return q.count(v)
		case wire.EntryValue:
			return word(&version, "a version", v)
		}
		return nil
	})
	if q.versions == nil {
		q.versions = map[string]string{}
	}
	q.versions[name] = version
	return err
}

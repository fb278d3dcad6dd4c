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

// request is a discovery request, of a delta or a state-of-the-world stream.
type request struct {
	node    *corev3.Node
	typeURL string
	nonce   string
	// rejected is Envoy's reason for refusing the response of the nonce;
	// message is the text in it.
	rejected, message string
	// subscribe and unsubscribe change the subscription (delta).
	subscribe, unsubscribe []string
	// versions are the versions that the proxy has, by name (delta).
	versions map[string]string
	// version is the version that the proxy has (state of the world).
	version string
	// named is the number of names in the subscription (state of the world), and
	// asked is a hash of them that does not depend on their order. Each answer of
	// a proxy repeats its hundreds of names, so they are decoded from body only
	// when the hash is new.
	named int
	asked uint64
	body  []byte
	// total is the number of all names in the request, and size its bytes.
	total, size int
	// wanted is the approximate size of the names that it subscribes to, in bytes.
	wanted int
	// free releases body; no other field refers to it.
	free func()
}

var errMalformed = errors.New("the request is not a protobuf message")

// eachField calls fn for every length-delimited field of a message.
func eachField(b []byte, fn func(protowire.Number, []byte) error) error {
	return wire.EachBytes(b, errMalformed, fn)
}

// readSotW decodes a DiscoveryRequest. It retains b.
func readSotW(b []byte) (*request, error) {
	q := &request{body: b, size: len(b)}
	err := eachField(b, func(n protowire.Number, v []byte) (err error) {
		switch n {
		case wire.RequestVersion:
			err = shortText(&q.version, "version_info", v)
		case wire.RequestNode:
			err = q.readNode(v)
		case wire.RequestNames:
			q.named++
			q.asked += xxhash.Sum64(v)
			q.wanted += len(v) + perName
			err = q.count(v)
		case wire.RequestTypeURL:
			err = shortText(&q.typeURL, "type_url", v)
		case wire.RequestNonce:
			err = shortText(&q.nonce, "response_nonce", v)
		case wire.RequestError:
			err = q.readRejection(v)
		}
		return err
	})
	return q, err
}

// names returns the names of a state-of-the-world request.
func (q *request) names() []string {
	names := make([]string, 0, q.named)
	// The body was decoded before without an error.
	_ = eachField(q.body, func(n protowire.Number, v []byte) error {
		if n == wire.RequestNames {
			names = append(names, string(v))
		}
		return nil
	})
	return names
}

// readDelta decodes a DeltaDiscoveryRequest.
func readDelta(b []byte) (*request, error) {
	q := &request{size: len(b)}
	err := eachField(b, func(n protowire.Number, v []byte) (err error) {
		switch n {
		case wire.DeltaRequestNode:
			err = q.readNode(v)
		case wire.DeltaRequestTypeURL:
			err = shortText(&q.typeURL, "type_url", v)
		case wire.DeltaRequestSubscribe:
			q.wanted += len(v) + perName
			q.subscribe, err = append(q.subscribe, string(v)), q.count(v)
		case wire.DeltaRequestUnsubscribe:
			q.unsubscribe, err = append(q.unsubscribe, string(v)), q.count(v)
		case wire.DeltaRequestVersions:
			err = q.readVersion(v)
		case wire.DeltaRequestNonce:
			err = shortText(&q.nonce, "response_nonce", v)
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

// readVersion decodes one entry of initial_resource_versions.
func (q *request) readVersion(b []byte) error {
	var name, version string
	err := eachField(b, func(n protowire.Number, v []byte) error {
		switch n {
		case wire.EntryKey:
			name = string(v)
			return q.count(v)
		case wire.EntryValue:
			return shortText(&version, "a version", v)
		}
		return nil
	})
	if q.versions == nil {
		q.versions = map[string]string{}
	}
	q.versions[name] = version
	return err
}

// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// Types of Envoy's API that are more to this package than a name.
const (
	typePrefix      = "type.googleapis.com/"
	envoyPrefix     = typePrefix + "envoy."
	ownPrefix       = typePrefix + "istio."
	wrapperType     = typePrefix + "envoy.service.discovery.v3.Resource"
	clusterType     = typePrefix + "envoy.config.cluster.v3.Cluster"
	endpointType    = typePrefix + "envoy.config.endpoint.v3.ClusterLoadAssignment"
	listenerType    = typePrefix + "envoy.config.listener.v3.Listener"
	routeType       = typePrefix + "envoy.config.route.v3.RouteConfiguration"
	virtualHostType = typePrefix + "envoy.config.route.v3.VirtualHost"
	scopedRouteType = typePrefix + "envoy.config.route.v3.ScopedRouteConfiguration"
	extensionType   = typePrefix + "envoy.config.core.v3.TypedExtensionConfig"
	runtimeType     = typePrefix + "envoy.service.runtime.v3.Runtime"
	rbacType        = typePrefix + "envoy.extensions.filters.http.rbac.v3.RBAC"
	secretType      = typePrefix + "envoy.extensions.transport_sockets.tls.v3.Secret"
)

// Field numbers of envoy.service.discovery.v3.
const (
	firstName = 1 // the name of each resource that namedFirst names
)

var errMalformed = errors.New("the frame is no protobuf message")

// namedFirst says whether the first field of a type is its name. A response
// for the state of the world says the name nowhere else.
func namedFirst(typeURL string) bool {
	switch typeURL {
	case clusterType, endpointType, listenerType, routeType, virtualHostType, scopedRouteType, extensionType, runtimeType, secretType:
		return true
	}
	return false
}

// whole says whether a response for the state of the world has all resources
// of a type. Those of other types have some, by name.
func whole(typeURL string) bool {
	return typeURL == clusterType || typeURL == listenerType || typeURL == scopedRouteType || agents(typeURL)
}

// agents says whether a type is one that the agent asks for itself, such as the
// name table and the mesh's roots. It goes by the first resource, which needs no
// name, of the newest response that has any.
func agents(typeURL string) bool { return strings.HasPrefix(typeURL, ownPrefix) }

// eachField calls fn for every length-delimited field of a message, with its
// tag and its content.
func eachField(b []byte, fn func(n protowire.Number, raw, v []byte) error) error {
	return wire.Each(b, errMalformed, func(f wire.Field) error {
		if f.Type != protowire.BytesType {
			return nil
		}
		return fn(f.Number, f.Raw, f.Data)
	})
}

// eachFrameField calls fn for every length-delimited field of a frame. fn
// reads as much of the field as it needs.
func eachFrameField(frame mem.BufferSlice, fn func(n protowire.Number, r *mem.Reader, size int) error) error {
	r := frame.Reader()
	defer func() { _ = r.Close() }() // it never returns an error
	for r.Remaining() > 0 {
		tag, err := binary.ReadUvarint(r)
		num, typ := protowire.DecodeTag(tag)
		if err != nil || num < protowire.MinValidNumber {
			return errMalformed
		}
		skip := 0
		switch typ {
		case protowire.VarintType:
			_, err = binary.ReadUvarint(r)
		case protowire.Fixed32Type:
			skip = 4
		case protowire.Fixed64Type:
			skip = 8
		case protowire.BytesType:
			var size uint64
			if size, err = binary.ReadUvarint(r); err != nil || size > uint64(r.Remaining()) {
				return errMalformed
			}
			rest := r.Remaining() - int(size)
			if err := fn(num, r, int(size)); err != nil {
				return err
			}
			skip = r.Remaining() - rest
		default:
			return errMalformed // groups, which these messages do not have
		}
		if err != nil || skip > r.Remaining() {
			return errMalformed
		}
		if _, err := r.Discard(skip); err != nil {
			return errMalformed
		}
	}
	return nil
}

// text reads a field as a string.
func text(r *mem.Reader, size int) string {
	var b strings.Builder
	b.Grow(size)
	_, _ = io.CopyN(&b, r, int64(size)) // as much is there
	return b.String()
}

// head is what a response is about.
type head struct {
	typeURL string
	nonce   string
	version string   // SotW
	removed []string // delta
}

// readHead reads a response without its resources.
func readHead(frame mem.BufferSlice, delta bool) (h head, err error) {
	err = eachFrameField(frame, func(n protowire.Number, r *mem.Reader, size int) error {
		switch n {
		case wire.ResponseVersion:
			h.version = text(r, size)
		case wire.ResponseTypeURL:
			h.typeURL = text(r, size)
		case wire.ResponseNonce:
			h.nonce = text(r, size)
		case wire.ResponseRemoved:
			if delta {
				h.removed = append(h.removed, text(r, size))
			}
		}
		return nil
	})
	return h, err
}

// eachResource calls fn for every resource of a response. The resource is
// valid until fn returns. Its body is as on disk.
func eachResource(frame mem.BufferSlice, delta bool, h head, fn func(*resource) error) error {
	var buf, body []byte
	return eachFrameField(frame, func(n protowire.Number, r *mem.Reader, size int) error {
		if n != wire.ResponseResources {
			return nil
		}
		if buf = grow(buf, size); cap(buf) > maxKept {
			defer func() { buf, body = nil, nil }()
		}
		if _, err := io.ReadFull(r, buf); err != nil {
			return errMalformed
		}
		res := &resource{body: body[:0]}
		var err error
		if delta {
			err = res.readWrapper(buf)
		} else {
			res.version = h.version
			err = res.readAny(buf, h.typeURL)
		}
		body = res.body
		if err != nil || !res.there {
			return err // without content it is a sign of life, or of a name that does not exist
		}
		return fn(res)
	})
}

// resource is one resource of a response.
type resource struct {
	name    string
	version string
	there   bool   // it has content
	body    []byte // the Resource message without name, version and time to live
}

// readWrapper reads a Resource.
func (r *resource) readWrapper(b []byte) error {
	return eachField(b, func(n protowire.Number, raw, v []byte) error {
		switch n {
		case wire.ResourceVersion:
			r.version = string(v)
		case wire.ResourceName:
			r.name = string(v)
		case wire.ResourceTTL:
			// What is kept has nobody who prolongs its life.
		default:
			r.there = r.there || n == wire.ResourceAny
			r.body = append(r.body, raw...)
		}
		return nil
	})
}

// readAny reads a resource of a response for the state of the world.
func (r *resource) readAny(b []byte, typeURL string) error {
	var isType string
	var value []byte
	err := eachField(b, func(n protowire.Number, _, v []byte) error {
		switch n {
		case wire.AnyTypeURL:
			isType = string(v)
		case wire.AnyValue:
			value = v
		}
		return nil
	})
	if err != nil {
		return err
	}
	if isType == wrapperType {
		return r.readWrapper(value)
	}
	r.there = true
	r.body = appendField(r.body, wire.ResourceAny, b)
	if !namedFirst(typeURL) {
		return nil
	}
	return eachField(value, func(n protowire.Number, _, v []byte) error {
		if n == firstName {
			r.name = string(v)
		}
		return nil
	})
}

// private says whether a body has a private key in it.
func private(body []byte) bool { return bytes.Contains(body, []byte("PRIVATE KEY-----")) }

// appendField appends one length-delimited field.
func appendField[T string | []byte](b []byte, n protowire.Number, v T) []byte {
	b = protowire.AppendVarint(protowire.AppendTag(b, n, protowire.BytesType), uint64(len(v)))
	return append(b, v...)
}

// request is what Envoy asks for or answers.
type request struct {
	typeURL     string
	nonce       string
	version     string // SotW: of what Envoy has of the type
	names       []string
	unsubscribe []string          // delta
	claims      map[string]string // delta: what Envoy has, with the versions
	rejected    string            // why, in Envoy's words
}

// readRequest reads a request.
func readRequest(frame mem.BufferSlice, delta bool) (q request, err error) {
	if delta {
		return readDelta(frame)
	}
	err = eachFrameField(frame, func(n protowire.Number, r *mem.Reader, size int) (err error) {
		switch n {
		case wire.RequestVersion:
			q.version = text(r, size)
		case wire.RequestNames:
			q.names = append(q.names, text(r, size))
		case wire.RequestTypeURL:
			q.typeURL = text(r, size)
		case wire.RequestNonce:
			q.nonce = text(r, size)
		case wire.RequestError:
			q.rejected, err = rejection([]byte(text(r, size)))
		}
		return err
	})
	return q, err
}

func readDelta(frame mem.BufferSlice) (q request, err error) {
	err = eachFrameField(frame, func(n protowire.Number, r *mem.Reader, size int) (err error) {
		switch n {
		case wire.DeltaRequestTypeURL:
			q.typeURL = text(r, size)
		case wire.DeltaRequestSubscribe:
			q.names = append(q.names, text(r, size))
		case wire.DeltaRequestUnsubscribe:
			q.unsubscribe = append(q.unsubscribe, text(r, size))
		case wire.DeltaRequestVersions:
			var entry [3]string
			err = eachField([]byte(text(r, size)), func(n protowire.Number, _, v []byte) error {
				if n == wire.EntryKey || n == wire.EntryValue {
					entry[n] = string(v)
				}
				return nil
			})
			if q.claims == nil {
				q.claims = map[string]string{}
			}
			q.claims[entry[wire.EntryKey]] = entry[wire.EntryValue]
		case wire.DeltaRequestNonce:
			q.nonce = text(r, size)
		case wire.DeltaRequestError:
			q.rejected, err = rejection([]byte(text(r, size)))
		}
		return err
	})
	return q, err
}

// rejection reads why Envoy did not take a response.
func rejection(status []byte) (string, error) {
	reason := "no reason given"
	err := eachField(status, func(n protowire.Number, _, v []byte) error {
		if n == wire.StatusMessage && len(v) > 0 {
			reason = string(v)
		}
		return nil
	})
	return reason, err
}

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

// namedFirst reports whether the first field of a type is its name. A response
// for the state of the world says the name nowhere else.
func namedFirst(typeURL string) bool {
	switch typeURL {
	case clusterType, endpointType, listenerType, routeType, virtualHostType, scopedRouteType, extensionType, runtimeType, secretType:
		return true
	}
	return false
}

// whole reports whether a response for the state of the world has all resources
// of a type. Those of other types have some, by name.
func whole(typeURL string) bool {
	return typeURL == clusterType || typeURL == listenerType || typeURL == scopedRouteType || agents(typeURL)
}

// agents reports whether a type is one that the agent asks for itself, such as the
// name table and the mesh's roots. It goes by the first resource, which needs no
// name, of the newest response that has any.
func agents(typeURL string) bool { return strings.HasPrefix(typeURL, ownPrefix) }

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

// eachResource calls fn for every resource of a response that has content. The
// resource is valid until fn returns.
func eachResource(frame mem.BufferSlice, delta bool, h head, fn func(*received) error) error {
	var buf, body []byte
	return eachFrameField(frame, func(n protowire.Number, r *mem.Reader, size int) (err error) {
		if n != wire.ResponseResources {
			return nil
		}
		buf = grow(buf, size)
		if _, err := io.ReadFull(r, buf); err != nil {
			return errMalformed
		}
		res := &received{body: grow(body, size)[:0]}
		if delta {
			err = res.readWrapper(buf)
		} else {
			res.version = h.version
			err = res.readAny(buf, h.typeURL)
		}
		body = res.body
		if err != nil || !res.there {
			return err
		}
		return fn(res)
	})
}

// received is one resource of a response.
type received struct {
	name, version string
	there         bool   // it has content: otherwise it says that a resource lives, or does not exist
	body          []byte // as in a snapshot
}

// readWrapper reads a Resource. The time to live is not kept: nobody prolongs it.
func (r *received) readWrapper(b []byte) error {
	return wire.Each(b, errMalformed, func(f wire.Field) error {
		switch {
		case f.Type != protowire.BytesType || f.Number == wire.ResourceTTL:
		case f.Number == wire.ResourceVersion:
			r.version = string(f.Data)
		case f.Number == wire.ResourceName:
			r.name = string(f.Data)
		default:
			r.there = r.there || f.Number == wire.ResourceAny
			r.body = append(r.body, f.Raw...)
		}
		return nil
	})
}

// readAny reads a resource of a response for the state of the world.
func (r *received) readAny(b []byte, typeURL string) error {
	var isType string
	var value []byte
	err := wire.EachBytes(b, errMalformed, func(n protowire.Number, v []byte) error {
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
	r.there, r.body = true, appendField(r.body, wire.ResourceAny, b)
	if !namedFirst(typeURL) {
		return nil
	}
	return wire.EachBytes(value, errMalformed, func(n protowire.Number, v []byte) error {
		if n == firstName {
			r.name = string(v)
		}
		return nil
	})
}

// private reports whether a body has a private key in it.
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
	typeURL, names, nonce, errorDetail := wire.RequestTypeURL, wire.RequestNames, wire.RequestNonce, wire.RequestError
	version, unsubscribe, claims := wire.RequestVersion, protowire.Number(0), protowire.Number(0)
	if delta {
		typeURL, names, nonce, errorDetail = wire.DeltaRequestTypeURL, wire.DeltaRequestSubscribe, wire.DeltaRequestNonce, wire.DeltaRequestError
		version, unsubscribe, claims = 0, wire.DeltaRequestUnsubscribe, wire.DeltaRequestVersions
	}
	err = eachFrameField(frame, func(n protowire.Number, r *mem.Reader, size int) (err error) {
		switch n {
		case typeURL:
			q.typeURL = text(r, size)
		case names:
			q.names = append(q.names, text(r, size))
		case nonce:
			q.nonce = text(r, size)
		case errorDetail:
			q.rejected, err = rejection([]byte(text(r, size)))
		case version:
			q.version = text(r, size)
		case unsubscribe:
			q.unsubscribe = append(q.unsubscribe, text(r, size))
		case claims:
			if q.claims == nil {
				q.claims = map[string]string{}
			}
			var entry [3]string
			err = wire.EachBytes([]byte(text(r, size)), errMalformed, func(n protowire.Number, v []byte) error {
				if n == wire.EntryKey || n == wire.EntryValue {
					entry[n] = string(v)
				}
				return nil
			})
			q.claims[entry[wire.EntryKey]] = entry[wire.EntryValue]
		}
		return err
	})
	return q, err
}

// rejection reads why Envoy did not take a response.
func rejection(status []byte) (string, error) {
	reason := "no reason given"
	err := wire.EachBytes(status, errMalformed, func(n protowire.Number, v []byte) error {
		if n == wire.StatusMessage && len(v) > 0 {
			reason = string(v)
		}
		return nil
	})
	return reason, err
}

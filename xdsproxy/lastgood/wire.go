// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"bytes"
	"errors"
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// Types of Envoy's API that this package treats specially.
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
	firstName = 1 // the name of each resource for which namedFirst returns true
)

var errMalformed = errors.New("the frame is not a protobuf message")

// namedFirst reports whether the first field of a type is its name. A state-of-the-world response
// contains the name nowhere else.
func namedFirst(typeURL string) bool {
	switch typeURL {
	case clusterType, endpointType, listenerType, routeType, virtualHostType, scopedRouteType, extensionType, runtimeType, secretType:
		return true
	}
	return false
}

// whole reports whether a state-of-the-world response contains all resources of a type. For other
// types, it contains resources by name.
func whole(typeURL string) bool {
	return typeURL == clusterType || typeURL == listenerType || typeURL == scopedRouteType || agents(typeURL)
}

// agents reports whether the agent itself requests a type, such as the name table and the mesh's
// roots. The agent uses the first resource, which needs no name, of the newest response that is not
// empty.
func agents(typeURL string) bool { return strings.HasPrefix(typeURL, ownPrefix) }

// text returns a field as a string.
func text(v wire.Cursor) string {
	s, _ := v.Text(v.Len())
	return s
}

// head contains the fields of a response other than its resources.
type head struct {
	typeURL string
	nonce   string
	version string   // SotW
	removed []string // delta
}

// readHead decodes a response without its resources.
func readHead(frame mem.BufferSlice, delta bool) (h head, err error) {
	ok := wire.NewCursor(frame).Each(func(n protowire.Number, v wire.Cursor) {
		switch {
		case n == wire.ResponseVersion:
			h.version = text(v)
		case n == wire.ResponseTypeURL:
			h.typeURL = text(v)
		case n == wire.ResponseNonce:
			h.nonce = text(v)
		case n == wire.ResponseRemoved && delta:
			h.removed = append(h.removed, text(v))
		}
	})
	if !ok {
		err = errMalformed
	}
	return h, err
}

// eachResource calls fn for every resource of a response that has content.
func eachResource(frame mem.BufferSlice, delta bool, h head, fn func(*received) error) (err error) {
	ok := wire.NewCursor(frame).Each(func(n protowire.Number, v wire.Cursor) {
		if n != wire.ResponseResources || err != nil {
			return
		}
		res := &received{}
		if delta {
			err = res.readWrapper(v.Bytes(v.Len()))
		} else {
			res.version = h.version
			err = res.readAny(v.Bytes(v.Len()), h.typeURL)
		}
		if err == nil && res.there {
			err = fn(res)
		}
	})
	if err == nil && !ok {
		err = errMalformed
	}
	return err
}

// received is one resource of a response.
type received struct {
	name, version string
	there         bool   // it has content; otherwise it only refreshes the resource or says that it does not exist
	body          []byte // in the format of a snapshot
}

// readWrapper decodes a Resource. It drops the time to live, because no server would renew it.
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

// readAny decodes a resource of a state-of-the-world response.
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
	r.there, r.body = true, wire.Append(r.body, wire.ResourceAny, b)
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

// private reports whether a body contains a private key.
func private(body []byte) bool { return bytes.Contains(body, []byte("PRIVATE KEY-----")) }

// request is a subscription or an acknowledgement from Envoy.
type request struct {
	typeURL     string
	nonce       string
	version     string // SotW: version of the type that Envoy has
	names       []string
	unsubscribe []string          // delta
	claims      map[string]string // delta: resources that Envoy has, with their versions
	rejected    string            // Envoy's error message
}

// readRequest decodes a request.
func readRequest(frame mem.BufferSlice, delta bool) (q request, err error) {
	typeURL, names, nonce, errorDetail := wire.RequestTypeURL, wire.RequestNames, wire.RequestNonce, wire.RequestError
	version, unsubscribe, claims := wire.RequestVersion, protowire.Number(0), protowire.Number(0)
	if delta {
		typeURL, names, nonce, errorDetail = wire.DeltaRequestTypeURL, wire.DeltaRequestSubscribe, wire.DeltaRequestNonce, wire.DeltaRequestError
		version, unsubscribe, claims = 0, wire.DeltaRequestUnsubscribe, wire.DeltaRequestVersions
	}
	ok := wire.NewCursor(frame).Each(func(n protowire.Number, v wire.Cursor) {
		switch n {
		case typeURL:
			q.typeURL = text(v)
		case names:
			q.names = append(q.names, text(v))
		case nonce:
			q.nonce = text(v)
		case errorDetail:
			q.rejected = "no reason given"
			v.Each(func(n protowire.Number, v wire.Cursor) {
				if n == wire.StatusMessage && v.Len() > 0 {
					q.rejected = text(v)
				}
			})
		case version:
			q.version = text(v)
		case unsubscribe:
			q.unsubscribe = append(q.unsubscribe, text(v))
		case claims:
			if q.claims == nil {
				q.claims = map[string]string{}
			}
			var entry [3]string
			v.Each(func(n protowire.Number, v wire.Cursor) {
				if n == wire.EntryKey || n == wire.EntryValue {
					entry[n] = text(v)
				}
			})
			q.claims[entry[wire.EntryKey]] = entry[wire.EntryValue]
		}
	})
	if !ok {
		err = errMalformed
	}
	return q, err
}

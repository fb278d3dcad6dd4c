// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
)

// Kind is the kind of a user object, for example "VirtualService". It equals the Kubernetes kind,
// except for [KubernetesGateway], because Istio's own [Gateway] has the same Kubernetes kind.
type Kind string

// Kinds of Istio.
const (
	AuthorizationPolicy   Kind = "AuthorizationPolicy"
	DestinationRule       Kind = "DestinationRule"
	EnvoyFilter           Kind = "EnvoyFilter"
	Gateway               Kind = "Gateway"
	PeerAuthentication    Kind = "PeerAuthentication"
	ProxyConfig           Kind = "ProxyConfig"
	RequestAuthentication Kind = "RequestAuthentication"
	ServiceEntry          Kind = "ServiceEntry"
	Sidecar               Kind = "Sidecar"
	Telemetry             Kind = "Telemetry"
	VirtualService        Kind = "VirtualService"
	TrafficExtension      Kind = "TrafficExtension"
	WasmPlugin            Kind = "WasmPlugin"
	WorkloadEntry         Kind = "WorkloadEntry"
	WorkloadGroup         Kind = "WorkloadGroup"
)

// Kinds of the Gateway API and of Kubernetes that are also configuration.
const (
	BackendTLSPolicy  Kind = "BackendTLSPolicy"
	GRPCRoute         Kind = "GRPCRoute"
	GatewayClass      Kind = "GatewayClass"
	HTTPRoute         Kind = "HTTPRoute"
	Ingress           Kind = "Ingress"
	IngressClass      Kind = "IngressClass"
	KubernetesGateway Kind = "KubernetesGateway"
	ReferenceGrant    Kind = "ReferenceGrant"
	ListenerSet       Kind = "ListenerSet"
	TCPRoute          Kind = "TCPRoute"
	TLSRoute          Kind = "TLSRoute"
	UDPRoute          Kind = "UDPRoute"
)

// MeshConfigKind names the mesh wide settings in a [Change]. It is no user
// object: the settings come from the mesh config file.
const MeshConfigKind Kind = "MeshConfig"

// Key identifies one user object.
type Key struct {
	Kind      Kind
	Namespace string
	Name      string
}

// String returns kind/namespace/name, the form that logs and errors use.
func (k Key) String() string {
	return fmt.Sprintf("%s/%s/%s", k.Kind, k.Namespace, k.Name)
}

// Compare orders keys by kind, namespace and name.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Kind, o.Kind), cmp.Compare(k.Namespace, o.Namespace), cmp.Compare(k.Name, o.Name))
}

// Config is one user object of the mesh as read from a store. Stores share the objects that they
// return, so callers must not modify them; [Config.Clone] returns a copy that may be modified.
type Config struct {
	Key
	// APIVersion is the group and version in which the object was written, for example
	// "networking.istio.io/v1"; empty means the recommended version.
	APIVersion  string
	Labels      map[string]string
	Annotations map[string]string
	// ResourceVersion is an opaque token that changes with the object.
	ResourceVersion string
	// Generation counts the versions of Spec, starting at 1; 0 means that the store does not count
	// them.
	Generation int64
	// UID distinguishes an object from a later one with the same name; empty if the store has no
	// UIDs.
	UID string
	// Created orders objects that compete; see [Older].
	Created time.Time
	// Source is the location of the object for messages, for example "config/catalog.yaml:12".
	Source string
	// From are the keys of the objects that this one was converted from, sorted; nil for an object
	// that a user wrote.
	From []Key
	// Spec is the message of the kind from istio.io/api, for example
	// *networkingv1alpha3.VirtualService, or a pointer to the struct from gateway-api or
	// k8s.io/api, for example *gatewayv1.HTTPRouteSpec.
	Spec any
	// Status is the status that control planes wrote; nil if there is none. It is
	// *metav1alpha1.IstioStatus for Istio's kinds, otherwise a pointer to the status struct of the
	// kind.
	Status any
}

// Clone returns a deep copy of c.
func (c *Config) Clone() *Config {
	if c == nil {
		return nil
	}
	out := *c
	out.Labels, out.Annotations, out.From = maps.Clone(c.Labels), maps.Clone(c.Annotations), slices.Clone(c.From)
	out.Spec, out.Status = CloneSpec(c.Spec), CloneSpec(c.Status)
	return &out
}

// CloneSpec returns a deep copy of a spec or a status, which is a protobuf message or a struct with
// the DeepCopy method that Kubernetes generates.
func CloneSpec(spec any) any {
	switch v := spec.(type) {
	case nil:
		return nil
	case proto.Message:
		return proto.Clone(v)
	}
	return reflect.ValueOf(spec).MethodByName("DeepCopy").Call(nil)[0].Interface()
}

// SameSpec reports whether two specs, or two statuses, are equal.
func SameSpec(a, b any) bool {
	x, isMessage := a.(proto.Message)
	y, both := b.(proto.Message)
	if isMessage && both {
		return proto.Equal(x, y)
	}
	return reflect.DeepEqual(a, b)
}

// Older compares two objects in the canonical order of Istio: creation time,
// then name.namespace. It is a comparison function for slices.SortFunc.
func Older(a, b *Config) int {
	if c := a.Created.Compare(b.Created); c != 0 {
		return c
	}
	if c := cmp.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	return cmp.Compare(a.Namespace, b.Namespace)
}

// Selects reports whether a workload selector matches the labels of a workload: the workload must
// have every label of the selector with the same value. A nil or empty selector matches everything.
func Selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Change is the set of user objects that differ between two states. Changes can be merged; the
// empty Change means that nothing changed.
type Change struct {
	// All means that anything may have changed (first load, mesh config).
	All bool
	// Keys are the objects that were added, updated or deleted.
	Keys map[Key]struct{}
}

// NewChange returns a change of the given objects.
func NewChange(keys ...Key) Change {
	c := Change{Keys: make(map[Key]struct{}, len(keys))}
	for _, k := range keys {
		c.Keys[k] = struct{}{}
	}
	return c
}

// Empty reports whether nothing changed.
func (c Change) Empty() bool { return !c.All && len(c.Keys) == 0 }

// Merge returns the union of two changes. It modifies neither.
func (c Change) Merge(o Change) Change {
	m := Change{All: c.All || o.All}
	if m.All {
		return m
	}
	m.Keys = make(map[Key]struct{}, len(c.Keys)+len(o.Keys))
	for k := range c.Keys {
		m.Keys[k] = struct{}{}
	}
	for k := range o.Keys {
		m.Keys[k] = struct{}{}
	}
	return m
}

// Touches reports whether an object of one of the kinds changed.
func (c Change) Touches(kinds ...Kind) bool {
	if c.All {
		return true
	}
	for k := range c.Keys {
		for _, kind := range kinds {
			if k.Kind == kind {
				return true
			}
		}
	}
	return false
}

// Problem is a fault of one user object to be reported to its author. It never affects
// other objects.
type Problem struct {
	// Object is the key of the object. Kind and Name are empty if they could not be read.
	Object Key
	// Source is the location, for example "config/catalog.yaml:12".
	Source string
	// Reason is a sentence that names the field, the value and the fix.
	Reason string
	// Warning means that the object takes effect nevertheless, but perhaps not as
	// its author intended.
	Warning bool
	// Dangling means that the object refers to another one that does not exist.
	Dangling bool
	// Code is the code under which metrics count the problem; empty if they do not.
	Code ProblemCode
	// Unlisted is the number of problems that this one summarizes; 0 for an
	// ordinary problem.
	Unlisted int `json:",omitempty"`
}

// Count returns the number of problems that this one represents.
func (p Problem) Count() int { return max(1, p.Unlisted) }

// ProblemCode is a kind of problem that metrics count.
type ProblemCode string

// The problem codes that metrics count.
const (
	// ConflictOutbound means that connections to two services cannot be distinguished.
	ConflictOutbound ProblemCode = "outbound listener"
	// ConflictInbound means that services disagree on the protocol of a port of a workload.
	ConflictInbound ProblemCode = "inbound listener"
	// DuplicateHost means that two VirtualServices have the same host.
	DuplicateHost ProblemCode = "duplicate host"
)

// String returns the problem as one line of text.
func (p Problem) String() string {
	s := p.Reason
	if p.Object.Name != "" {
		s = p.Object.String() + ": " + s
	}
	if p.Source != "" {
		s = p.Source + ": " + s
	}
	return s
}

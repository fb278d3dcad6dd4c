// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xds

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// maxSockets bounds how deep transport sockets are nested in others.
const maxSockets = 32

// EditTLS calls edit with each TLS context of a type in a transport socket, also in those of other
// sockets, such as PROXY protocol, tap and STARTTLS. If edit reports a change, so does EditTLS, and
// the socket has a new configuration; the former one is not written to.
func EditTLS[C proto.Message](s *corev3.TransportSocket, edit func(C) bool) (changed bool) {
	if s.GetTypedConfig() == nil {
		return false
	}
	config := &anypb.Any{TypeUrl: s.GetTypedConfig().GetTypeUrl(), Value: s.GetTypedConfig().GetValue()}
	if changed = editTLS(config.ProtoReflect(), edit, 0); changed {
		s.ConfigType = &corev3.TransportSocket_TypedConfig{TypedConfig: config}
	}
	return changed
}

// editTLS reports whether edit has changed something in a message.
func editTLS[C proto.Message](m protoreflect.Message, edit func(C) bool, depth int) (changed bool) {
	switch message := m.Interface().(type) {
	case C:
		return edit(message)
	case *anypb.Any:
		inner, err := message.UnmarshalNew()
		if err != nil || depth == maxSockets || !editTLS(inner.ProtoReflect(), edit, depth+1) {
			return false
		}
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(inner)
		if err != nil {
			return false // invalid UTF-8, which Unmarshal has already rejected
		}
		message.Value = b
		return true
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Message() != nil && !f.IsList() && !f.IsMap() { // no socket has several
			changed = editTLS(v.Message(), edit, depth) || changed
		}
		return true
	})
	return changed
}

// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	sessionv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/stateful_session/v3"
	cookiev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/stateful_session/cookie/v3"
	headerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/stateful_session/header/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/type/http/v3"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// SessionFilter is the name of the filter that keeps the requests of a client at one endpoint.
const SessionFilter = "envoy.filters.http.stateful_session"

// Session returns the configuration, for routes to a service, of the filter that keeps the requests of
// a client at one endpoint. It returns nil if the service has no persistent sessions. The label of the
// cookie, "name" or "name:path", takes precedence over that of the header.
func Session(svc *model.Service) (*anypb.Any, error) {
	if svc == nil || !svc.Persistent() {
		return nil, nil
	}
	state := func(kind, name, path string, config proto.Message) (*anypb.Any, error) {
		if !httpguts.ValidHeaderFieldName(name) || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ';' }) {
			return nil, fmt.Errorf("the label of persistent sessions is not the name of a %s, so there are none: correct it", kind)
		}
		return Pack(&sessionv3.StatefulSessionPerRoute{Override: &sessionv3.StatefulSessionPerRoute_StatefulSession{
			StatefulSession: &sessionv3.StatefulSession{SessionState: &corev3.TypedExtensionConfig{
				Name: "envoy.http.stateful_session." + kind, TypedConfig: Pack(config),
			}},
		}}), nil
	}
	if label := svc.Labels[model.PersistentSessionLabel]; label != "" {
		name, path, ok := strings.Cut(label, ":")
		if !ok {
			path = "/"
		}
		return state("cookie", name, path, &cookiev3.CookieBasedSessionState{Cookie: &httpv3.Cookie{Name: name, Path: path}})
	}
	name := svc.Labels[model.PersistentSessionHeaderLabel]
	return state("header", name, "", &headerv3.HeaderBasedSessionState{Name: name})
}

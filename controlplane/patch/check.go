// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const (
	// maxDepth bounds how deep messages are nested in others.
	maxDepth = 64
	// maxResource is the size of a patched resource in bytes.
	maxResource = 8 << 20
)

// walker visits the messages in a message, also those inside an Any.
type walker struct {
	visit func(m protoreflect.Message, path string) error
	// root is called for the first message and those inside an Any; may be nil.
	root func(m protoreflect.Message, path string) error
}

// all visits a message and those in it.
func (w walker) all(m protoreflect.Message, path string, depth int) error {
	if _, packed := m.Interface().(*anypb.Any); w.root != nil && !packed {
		if err := w.root(m, path); err != nil {
			return err
		}
	}
	return w.message(m, path, depth)
}

func (w walker) message(m protoreflect.Message, path string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%s: it is nested more than %d deep: simplify it", path, maxDepth)
	}
	if a, ok := m.Interface().(*anypb.Any); ok {
		if a.GetTypeUrl() == "" {
			return nil
		}
		inner, err := a.UnmarshalNew()
		if err != nil {
			return fmt.Errorf("%s: %s", path, unknownType(a.GetTypeUrl()))
		}
		return w.all(inner.ProtoReflect(), path, depth+1)
	}
	if err := w.visit(m, path); err != nil {
		return err
	}
	var err error
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + "." + string(f.Name())
		switch {
		case f.IsMap():
			if f.MapValue().Message() == nil {
				return true
			}
			v.Map().Range(func(key protoreflect.MapKey, item protoreflect.Value) bool {
				err = w.message(item.Message(), at+"["+field.Clip(key.String(), field.MaxKeyText)+"]", depth+1)
				return err == nil
			})
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				if err = w.message(v.List().Get(i).Message(), field.Index(at, i), depth+1); err != nil {
					break
				}
			}
		default:
			err = w.message(v.Message(), at, depth+1)
		}
		return err == nil
	})
	return err
}

// unknownType says that Envoy does not have a type, and what serves its purpose.
func unknownType(url string) string {
	text := "the type " + field.Quote(url) + " is not one of a stock Envoy"
	if use := validate.ServedBy(url); use != "" {
		return text + ": " + use
	}
	return text + ": look it up in the documentation of the extension"
}

// checkValue returns why the value of a patch is not used, whatever it is merged into.
func checkValue(value proto.Message, limits Limits) error {
	var w walker
	w.visit = func(m protoreflect.Message, path string) error {
		name := string(m.Descriptor().FullName())
		text := func(f string) string {
			d := m.Descriptor().Fields().ByName(protoreflect.Name(f))
			if d == nil || d.Kind() != protoreflect.StringKind || d.IsList() {
				return ""
			}
			return m.Get(d).String()
		}
		switch name {
		case "envoy.type.matcher.v3.RegexMatcher":
			if err := model.CheckRegex(text("regex")); err != nil {
				return fmt.Errorf("%s.regex is %s: %w", path, field.Quote(text("regex")), err)
			}
		case "udpa.type.v1.TypedStruct", "xds.type.v3.TypedStruct":
			inner, err := describedBy(m)
			if inner == nil {
				return fmt.Errorf("%s: %s", path, unknownType(text("type_url")))
			}
			if limits.NoLua || limits.NoFiles {
				if err != nil {
					return fmt.Errorf("%s.value is not a %s: %w", path, inner.ProtoReflect().Descriptor().FullName(), err)
				}
				return w.message(inner.ProtoReflect(), path+".value", 1)
			}
		}
		switch {
		case limits.NoLua && strings.Contains(name, ".lua."):
			return fmt.Errorf("%s: %s", path, LuaOff)
		case limits.NoFiles && (text("filename") != "" || (name == "envoy.config.core.v3.PathConfigSource" || name == "envoy.config.core.v3.ConfigSource") && text("path") != ""):
			return fmt.Errorf("%s: files are switched off by the operator of the control plane: write the content inline", path)
		}
		return nil
	}
	return w.message(value.ProtoReflect(), "", 0)
}

// checkMessage returns why Envoy would refuse a message: it checks the rules of its fields, those of
// the configurations of extensions in it, and how filters follow each other.
func checkMessage(msg proto.Message) error {
	w := walker{
		visit: func(m protoreflect.Message, _ string) error { return checkStructure(m.Interface()) },
		root: func(m protoreflect.Message, path string) error { // checks the messages in it, too
			v, ok := m.Interface().(interface{ Validate() error })
			if !ok {
				return nil
			}
			if err := v.Validate(); err != nil && path != "" {
				return fmt.Errorf("%s: %w", strings.TrimPrefix(path, "."), err)
			} else if err != nil {
				return err
			}
			return nil
		},
	}
	return w.all(msg.ProtoReflect(), "", 0)
}

// checkResource is checkMessage for a whole resource.
func checkResource[M proto.Message](m M) error {
	if n := proto.Size(m); n > maxResource {
		return fmt.Errorf("it has %d bytes: at most %d are allowed", n, maxResource)
	}
	return checkMessage(m)
}

// checkStructure checks what no rule of a field expresses.
func checkStructure(m proto.Message) error {
	switch m := m.(type) {
	case *listenerv3.Listener:
		return checkChains(m)
	case *hcmv3.HttpConnectionManager:
		return checkFilters(m.GetHttpFilters())
	case *listenerv3.FilterChain:
		for i, f := range m.GetFilters() {
			if last := i == len(m.GetFilters())-1; ends(f) && !last {
				return fmt.Errorf("filter %s must be the last one of its chain: insert others before it", f.GetName())
			}
		}
	case *routev3.RouteConfiguration:
		return checkDomains(m)
	case interface {
		GetTableSize() *wrapperspb.UInt64Value
	}: // of Maglev; Envoy crashes with 1
		if n := m.GetTableSize(); n != nil && !new(big.Int).SetUint64(n.GetValue()).ProbablyPrime(0) {
			return fmt.Errorf("table_size is %d: write a prime number, for example 65537", n.GetValue())
		}
	case *tlsv3.DownstreamTlsContext:
		c := m.GetCommonTlsContext()
		if len(c.GetTlsCertificates())+len(c.GetTlsCertificateSdsSecretConfigs()) == 0 && c.GetTlsCertificateProviderInstance() == nil && c.GetCustomTlsCertificateSelector() == nil {
			return errors.New("a transport socket for TLS has no certificate: match only filter chains that have one")
		}
	}
	return nil
}

// ends reports whether a network filter handles a connection itself, which no filter can follow.
func ends(f *listenerv3.Filter) bool {
	url := f.GetTypedConfig().GetTypeUrl()
	return strings.HasSuffix(url, ".HttpConnectionManager") || strings.HasSuffix(url, ".TcpProxy") || strings.HasSuffix(url, ".RedisProxy")
}

func checkFilters(filters []*hcmv3.HttpFilter) error {
	if len(filters) == 0 {
		return errors.New("the connection manager has no HTTP filter: keep envoy.filters.http.router")
	}
	for i, f := range filters {
		router := strings.HasSuffix(f.GetTypedConfig().GetTypeUrl(), ".http.router.v3.Router")
		switch last := i == len(filters)-1; {
		case router && !last:
			return errors.New("envoy.filters.http.router must be the last HTTP filter: use INSERT_BEFORE it")
		case last && !router && f.GetTypedConfig() != nil && !terminal(f):
			return fmt.Errorf("the last HTTP filter must be one that answers requests, such as envoy.filters.http.router, and is %s: use INSERT_BEFORE the router", f.GetName())
		}
	}
	return nil
}

// terminal reports whether an HTTP filter of another type than the router answers requests.
func terminal(f *hcmv3.HttpFilter) bool {
	for _, name := range []string{".HealthCheck", ".Golang", ".Wasm", ".CustomResponse", ".TypedStruct", ".DynamicModuleFilter"} {
		if strings.HasSuffix(f.GetTypedConfig().GetTypeUrl(), name) {
			return true
		}
	}
	return false
}

func checkChains(l *listenerv3.Listener) error {
	seen := map[string]bool{}
	for _, c := range l.GetFilterChains() {
		key, err := proto.MarshalOptions{Deterministic: true}.Marshal(c.GetFilterChainMatch())
		if err != nil {
			return err
		}
		if seen[string(key)] {
			return fmt.Errorf("two filter chains of listener %s match the same connections: give each its own filter_chain_match", l.GetName())
		}
		seen[string(key)] = true
	}
	if len(l.GetFilterChains()) == 0 && l.GetDefaultFilterChain() == nil && l.GetUdpListenerConfig() == nil && l.GetApiListener() == nil && !slices.ContainsFunc(l.GetListenerFilters(), func(f *listenerv3.ListenerFilter) bool { return f != nil }) {
		return fmt.Errorf("listener %s has no filter chain: keep one, or remove the listener", l.GetName())
	}
	return nil
}

// checkDomains returns an error for two virtual hosts with the same name or domain.
func checkDomains(c *routev3.RouteConfiguration) error {
	of := strings.TrimSuffix(c.GetName(), VHDSSuffix)
	names, domains := map[string]bool{}, map[string]string{}
	for _, vh := range c.GetVirtualHosts() {
		if names[vh.GetName()] {
			return fmt.Errorf("two virtual hosts of %s have the name %s: rename one", of, field.Quote(vh.GetName()))
		}
		names[vh.GetName()] = true
		for _, d := range vh.GetDomains() {
			d = strings.ToLower(d)
			if other, ok := domains[d]; ok {
				return fmt.Errorf("the virtual hosts %s and %s of %s have the domain %s: remove it from one", field.Quote(other), field.Quote(vh.GetName()), of, field.Quote(d))
			}
			domains[d] = vh.GetName()
		}
	}
	return nil
}

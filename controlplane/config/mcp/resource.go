// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcpv1alpha1 "istio.io/api/mcp/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const (
	// MeshConfigType is the type of the mesh wide settings, whose resource is
	// an istio.mesh.v1alpha1.MeshConfig.
	MeshConfigType = "core/v1alpha1/MeshConfig"
	// revisionLabel says which revision of the control plane an object is for.
	revisionLabel = "istio.io/rev"
)

// SchemaOf returns the kind that a type URL such as
// "networking.istio.io/v1alpha3/VirtualService" stands for. Every version of a
// kind does.
func SchemaOf(typeURL string) (schema.Schema, bool) {
	i := strings.LastIndexByte(typeURL, '/')
	if i < 0 {
		return schema.Schema{}, false
	}
	apiVersion, name := typeURL[:i], typeURL[i+1:]
	sch, ok := schema.For(apiVersion, name)
	return sch, ok && sch.Accepts(apiVersion)
}

// typeURL returns the type that is asked for: in the version in which Istio 1.18
// keeps a kind, because its server knows no other, which is the oldest of those
// that are accepted. Later ones keep Istio's own kinds in the newest, and know
// no other either.
func typeURL(s schema.Schema, newest bool) string {
	version := s.Versions[len(s.Versions)-1]
	if newest && strings.HasSuffix(s.Group, ".istio.io") {
		version = s.Versions[0]
	}
	return s.Group + "/" + version + "/" + s.Name
}

// Encode returns the resource of an object, as Istio's control plane makes it:
// named namespace/name ("/name" without a namespace), the spec as it is, or as
// a google.protobuf.Struct if it is not a protobuf message.
func Encode(c *model.Config) (*mcpv1alpha1.Resource, error) {
	message, isMessage := c.Spec.(proto.Message)
	if !isMessage {
		raw, err := json.Marshal(c.Spec)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", c.Key, err)
		}
		fields := &structpb.Struct{}
		if err := fields.UnmarshalJSON(raw); err != nil {
			return nil, fmt.Errorf("encode %s: %w", c.Key, err)
		}
		message = fields
	}
	body := &anypb.Any{}
	if err := anypb.MarshalFrom(body, message, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, fmt.Errorf("encode %s: %w", c.Key, err)
	}
	meta := &mcpv1alpha1.Metadata{
		Name: c.Namespace + "/" + c.Name, Version: c.ResourceVersion, Labels: c.Labels, Annotations: c.Annotations,
	}
	if !c.Created.IsZero() {
		meta.CreateTime = timestamppb.New(c.Created)
	}
	return &mcpv1alpha1.Resource{Metadata: meta, Body: body}, nil
}

// decode reads one resource of a kind. What it gives is valid; its resource
// version is the server's. With an error the key is as far as it could be read.
func decode(sch schema.Schema, responseType string, resource *anypb.Any) (*model.Config, model.Key, error) {
	key := model.Key{Kind: sch.Kind}
	m := &mcpv1alpha1.Resource{}
	// Servers that know no type but that of the response write that one.
	if want := string(proto.MessageName(m)); messageName(resource) != want && resource.GetTypeUrl() != responseType {
		return nil, key, fmt.Errorf("it is a %s: it must be a %s", quote(resource.GetTypeUrl()), want)
	}
	if err := proto.Unmarshal(resource.GetValue(), m); err != nil {
		return nil, key, fmt.Errorf("it cannot be read: %s", parseFault(err))
	}
	namespace, name, ok := strings.Cut(m.GetMetadata().GetName(), "/")
	if !ok || name == "" || strings.Contains(name, "/") {
		return nil, key, fmt.Errorf("metadata.name is %s: it must be namespace/name", quote(m.GetMetadata().GetName()))
	}
	key.Namespace, key.Name = namespace, name
	c := &model.Config{
		Key: key, Labels: m.Metadata.Labels, Annotations: m.Metadata.Annotations, ResourceVersion: m.Metadata.Version,
	}
	if created := m.Metadata.CreateTime; created != nil {
		if err := created.CheckValid(); err != nil {
			return nil, key, errors.New("metadata.create_time is out of range")
		}
		c.Created = created.AsTime()
	}
	var err error
	if c.Spec, err = decodeBody(sch, m.Body); err != nil {
		return nil, key, err
	}
	if errs, _ := validate.Object(c); len(errs) > 0 {
		texts := make([]string, len(errs))
		for i, e := range errs {
			texts[i] = e.Error()
		}
		return nil, key, errors.New(strings.Join(texts, "; "))
	}
	return c, key, nil
}

// decodeBody reads a spec.
func decodeBody(sch schema.Schema, body *anypb.Any) (any, error) {
	if body == nil {
		return nil, errors.New("body is missing: it must be the spec")
	}
	spec := sch.NewSpec()
	if message, ok := spec.(proto.Message); ok {
		if !sameKind(messageName(body), string(proto.MessageName(message))) {
			return nil, fmt.Errorf("body is a %s: it must be a %s", quote(body.TypeUrl), proto.MessageName(message))
		}
		if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body.Value, message); err != nil {
			return nil, fmt.Errorf("body cannot be read: %s", parseFault(err))
		}
		return message, nil
	}
	fields := &structpb.Struct{}
	if want := string(proto.MessageName(fields)); messageName(body) != want {
		return nil, fmt.Errorf("body is a %s: it must be a %s", quote(body.TypeUrl), want)
	}
	if err := proto.Unmarshal(body.Value, fields); err != nil {
		return nil, fmt.Errorf("body cannot be read: %s", parseFault(err))
	}
	raw, err := fields.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("body cannot be read: %s", parseFault(err))
	}
	if spec, err = sch.DecodeSpec(raw); err != nil {
		return nil, fmt.Errorf("body is not the spec of a %s: %w", sch.Name, err)
	}
	validate.ApplyDefaults(spec)
	return spec, nil
}

// messageName returns the message of an Any, "" if its type URL names none.
func messageName(a *anypb.Any) string {
	url := a.GetTypeUrl()
	if i := strings.LastIndexByte(url, '/'); i >= 0 {
		return url[i+1:]
	}
	return ""
}

// sameKind reports whether two messages are one of Istio's kinds in perhaps two
// versions, which are the same on the wire: istio.networking.v1beta1.Gateway
// and istio.networking.v1alpha3.Gateway.
func sameKind(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	const version = 2
	return len(x) == len(y) && len(x) > version && slices.Equal(x[:version], y[:version]) && slices.Equal(x[version+1:], y[version+1:])
}

// parseFault returns the text of an error of the protobuf library, which varies
// its spaces from build to build so that nobody compares it.
func parseFault(err error) string {
	return strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
}

// quote writes what a server sent into a message, of bounded length.
func quote(s string) string {
	const most = 120
	if len(s) > most {
		return fmt.Sprintf("%.*q...", most, s)
	}
	return strconv.Quote(s)
}

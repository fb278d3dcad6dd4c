// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// head is an object as far as every kind looks the same.
type head struct {
	apiVersion, kind         string
	apiVersionLine, kindLine int
	metadata, spec           *yaml.Node
}

func (b *builder) head(n *yaml.Node) head {
	h := head{apiVersionLine: n.Line, kindLine: n.Line}
	Pairs(n, func(key, value *yaml.Node) {
		switch key.Value {
		case "apiVersion":
			h.apiVersion, _ = b.text(value, "apiVersion")
			h.apiVersionLine = key.Line
		case "kind":
			h.kind, _ = b.text(value, "kind")
			h.kindLine = key.Line
		case "metadata":
			h.metadata = value
		case "spec":
			h.spec = value
		case "status":
			// Written by control planes, never read from a person.
		default:
			hint := ""
			if len(b.faults) < field.MaxListed {
				hint = field.DidYouMean(key.Value, []string{"apiVersion", "kind", "metadata", "spec"})
			}
			b.errorf(key, "unknown field %s beside kind%s", field.Quote(key.Value), hint)
		}
	})
	return h
}

// metadata is what is read of an object's metadata. Namespace and name are
// empty when they are not valid.
type metadata struct {
	namespace, name     string
	labels, annotations map[string]string
	created             time.Time
	resourceVersion     string
}

// metadata reads the metadata of the object.
func (b *builder) metadata(n, object *yaml.Node, cluster bool, namespace string) metadata {
	m := metadata{namespace: namespace}
	if cluster {
		m.namespace = ""
	}
	if n == nil || isNull(n) {
		b.errorf(object, "metadata.name is missing: write metadata with a name")
		return metadata{}
	}
	if n.Kind != yaml.MappingNode {
		b.errorf(n, "metadata is %s: it must be a mapping with a name", shape(n))
		return metadata{}
	}
	nameNode, nsNode := n, n
	Pairs(n, func(key, value *yaml.Node) {
		if isNull(value) {
			return
		}
		switch key.Value {
		case "name":
			m.name, _ = b.text(value, "metadata.name")
			nameNode = key
		case "namespace":
			m.namespace, _ = b.text(value, "metadata.namespace")
			nsNode = key
		case "labels":
			m.labels = b.stringMap(value, "metadata.labels")
			for k, v := range field.Sorted(m.labels) {
				if text := validate.LabelFault(k, v); text != "" {
					b.errorf(value, "%s %s", field.Key("metadata.labels", k), text)
				}
			}
		case "annotations":
			m.annotations = b.stringMap(value, "metadata.annotations")
		case "creationTimestamp":
			created, err := time.Parse(time.RFC3339, value.Value)
			if err != nil {
				b.errorf(value, "metadata.creationTimestamp is %s: it must be a time such as 2030-01-31T12:00:00Z", shape(value))
			}
			m.created = created.UTC()
		case "resourceVersion":
			m.resourceVersion, _ = b.text(value, "metadata.resourceVersion")
		case "uid", "generation", "generateName", "managedFields", "ownerReferences",
			"finalizers", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds":
			// Bookkeeping of Kubernetes in exported objects.
		default:
			b.unknown(key, "metadata", func() []string { return []string{"name", "namespace", "labels", "annotations", "creationTimestamp"} })
		}
	})
	if text := validate.SubdomainFault(m.name); text != "" {
		b.errorf(nameNode, "metadata.name %s", text)
		m.name = ""
	}
	switch text := validate.DNSLabelFault(m.namespace); {
	case cluster && m.namespace != "":
		b.errorf(nsNode, "metadata.namespace is %s: objects of this kind have no namespace; remove it", field.Quote(m.namespace))
		m.namespace = ""
	case !cluster && text != "":
		b.errorf(nsNode, "metadata.namespace %s", text)
		m.name, m.namespace = "", ""
	}
	return m
}

// contentVersion hashes all of an object that can make a difference, so two
// objects of one key are equal when their versions are.
func contentVersion(c *model.Config) string {
	h := sha256.New()
	raw, err := CanonicalSpec(c.Spec)
	if err != nil {
		// Only text that is not UTF-8 gets here; YAML has none.
		raw = []byte(err.Error())
	}
	writeMap := func(m map[string]string) {
		_, _ = fmt.Fprintf(h, "%d;", len(m)) // a hash never fails to write
		for k, v := range field.Sorted(m) {
			_, _ = fmt.Fprintf(h, "%q=%q;", k, v)
		}
	}
	writeMap(c.Labels)
	writeMap(c.Annotations)
	_, _ = fmt.Fprintf(h, "%d;", c.Created.Unix())
	_, _ = h.Write(raw)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// CanonicalSpec returns the same bytes for the same spec.
func CanonicalSpec(spec any) ([]byte, error) {
	if m, ok := spec.(proto.Message); ok {
		return proto.MarshalOptions{Deterministic: true}.Marshal(m)
	}
	return json.Marshal(spec)
}

// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// revisionLabel selects the revision of the control plane that an object is for.
const revisionLabel = "istio.io/rev"

func keyOf(k schema.Schema, u *unstructured.Unstructured) model.Key {
	return model.Key{Kind: k.Kind, Namespace: u.GetNamespace(), Name: u.GetName()}
}

// read returns the visible state of an object: nil if it is for another revision, and the last
// valid state if it is invalid. The caller holds mu.
func (s *ConfigStore) read(k schema.Schema, u *unstructured.Unstructured) *model.Config {
	key := keyOf(k, u)
	if !s.ours(k, u) {
		delete(s.problems, key)
		return nil
	}
	c, problems := convert(k, u, s.source(key))
	old := s.Get(key)
	if len(problems) == 0 {
		delete(s.problems, key)
		return c
	}
	problem := model.Problem{Object: key, Source: s.source(key), Reason: sentences(problems), Warning: c != nil}
	if !problem.Warning && old != nil {
		problem.Reason += "; the last good version stays in force until the control plane restarts"
	}
	if s.problems[key] != problem {
		say := s.log.Warn
		if problem.Warning {
			say = s.log.Info
		}
		say("a configuration object has a problem", "kind", k.Kind, "name", key.Name, "namespace", key.Namespace,
			"source", s.cfg.Name, "reason", problem.Reason)
	}
	s.problems[key] = problem
	if problem.Warning {
		return c
	}
	return old
}

func (s *ConfigStore) source(key model.Key) string { return s.cfg.Name + " " + key.String() }

// sentences returns the errors as text, or the warnings if there are no errors.
func sentences(list []model.Problem) string {
	var errs, warnings []string
	for _, p := range list {
		if p.Warning {
			warnings = append(warnings, p.Reason)
		} else {
			errs = append(errs, p.Reason)
		}
	}
	if len(errs) == 0 {
		errs = warnings
	}
	return strings.Join(errs, "; ")
}

// convert decodes an object of the API server with the same checks as for a user's file. It returns
// nil if the object is invalid. A field that only a newer definition has is reported as a problem
// and ignored.
func convert(k schema.Schema, u *unstructured.Unstructured, source string) (*model.Config, []model.Problem) {
	raw, err := u.MarshalJSON()
	if err != nil {
		return nil, []model.Problem{{Reason: fmt.Sprintf("the object cannot be read: %v", err)}}
	}
	objects, problems := codec.DecodeForeign(source, raw)
	if len(objects) != 1 {
		return nil, problems
	}
	c := objects[0]
	c.Source = source
	complete(k, u, c)
	return c, problems
}

// stored decodes an object that may be invalid, so that it can be corrected. Parts that cannot be
// decoded are left out.
func stored(k schema.Schema, u *unstructured.Unstructured) (*model.Config, error) {
	c := &model.Config{
		Key: keyOf(k, u), APIVersion: u.GetAPIVersion(), Labels: u.GetLabels(), Annotations: u.GetAnnotations(),
		ResourceVersion: u.GetResourceVersion(), Created: u.GetCreationTimestamp().UTC(), Spec: k.NewSpec(),
	}
	complete(k, u, c)
	if u.Object["spec"] == nil {
		return c, nil
	}
	raw, err := json.Marshal(u.Object["spec"])
	if err != nil {
		return nil, err
	}
	c.Spec, err = k.DecodeSpec(raw)
	return c, err
}

// complete sets the fields that only the API server knows.
func complete(k schema.Schema, u *unstructured.Unstructured, c *model.Config) {
	c.Generation, c.UID = u.GetGeneration(), string(u.GetUID())
	if status := u.Object["status"]; status != nil && k.NewStatus() != nil {
		// A status that cannot be decoded was written by another program and is ignored.
		if raw, err := json.Marshal(status); err == nil {
			if read, err := k.DecodeStatus(raw); err == nil {
				c.Status = read
			}
		}
	}
}

// put overwrites the labels, annotations and spec of an object of the API server and keeps its
// other fields.
func put(u *unstructured.Unstructured, c *model.Config) error {
	raw, err := codec.EncodeSpec(c.Spec)
	if err != nil {
		return err
	}
	var spec map[string]any
	if err := utiljson.Unmarshal(raw, &spec); err != nil { // preserves integers
		return err
	}
	u.Object["spec"] = spec
	u.SetLabels(c.Labels)
	u.SetAnnotations(c.Annotations)
	return nil
}

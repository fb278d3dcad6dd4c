// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// Past answers a command about versions of objects that a control plane has used. That is the one that the
// user names, else that of the running mesh that uses a store, which may be "". Its address is returned.
type Past interface {
	// Changes returns the objects that differ between two moments, as the user writes them.
	Changes(ctx context.Context, store, from, to string) (c report.Changes, control string, err error)
	// Versions returns the versions of an object, the newest last. If revision is not empty, it returns
	// those whose revision begins with it, with their objects. Empty fields of the key mean all objects.
	Versions(ctx context.Context, store string, key model.Key, revision string) (h report.History, control string, err error)
	// Complete adds the completion of the moments --from and --to, or of the revision --to and the object.
	Complete()
}

// sayControl prints which control plane has answered.
func sayControl(cmd *cobra.Command, control, replica string) {
	if replica != "" {
		control += " (" + replica + ")"
	}
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "history of control plane %s\n", control) // the terminal may be closed
}

// diffOfTimes prints which objects differ between two moments.
func diffOfTimes(cmd *cobra.Command, past Past, store string, files int, from, to string) error {
	switch {
	case files > 0:
		return &ExitError{exitUsage, errors.New("-f and --from exclude each other: compare files with the store, or two times")}
	case from == "":
		return &ExitError{exitUsage, errors.New("--to needs --from: write --from TIME")}
	}
	changes, control, err := past.Changes(cmd.Context(), store, from, to)
	if err != nil {
		return &ExitError{exitUsage, err}
	}
	sayControl(cmd, control, changes.Replica)
	for _, c := range changes.Objects {
		text, err := pastDifference(c)
		if err != nil {
			return &ExitError{exitUsage, err}
		}
		_, _ = io.WriteString(columns.Raw(cmd.OutOrStdout()), text) // the terminal may be closed
	}
	if len(changes.Objects) > 0 {
		return &ExitError{Code: exitFailed}
	}
	return nil
}

// pastDifference returns the difference of two versions as a unified diff.
func pastDifference(c report.Changed) (string, error) {
	text := func(v *report.Version) (label, content string, err error) {
		if v == nil {
			return "/dev/null", "", nil
		}
		at := "\t" + v.At.Local().Format(time.DateTime)
		if model.Kind(v.Kind) == model.MeshConfigKind {
			raw, err := yaml.JSONToYAML(v.Object)
			return v.Name + at, string(raw), err
		}
		old, err := pastObject(*v)
		if err != nil {
			return "", "", err
		}
		raw, err := written(old)
		return display(old.Key) + at, string(raw), err
	}
	fromLabel, before, err := text(c.Before)
	if err != nil {
		return "", err
	}
	toLabel, after, err := text(c.After)
	if err != nil {
		return "", err
	}
	return udiff.Unified(fromLabel, toLabel, before, after), nil
}

// pastObject returns the object of a version.
func pastObject(v report.Version) (*model.Config, error) {
	c, err := codec.DecodeStored(v.Object)
	if err != nil {
		return nil, fmt.Errorf("revision %s: %w", v.Revision, err)
	}
	c.Source = "revision " + v.Revision
	return c, nil
}

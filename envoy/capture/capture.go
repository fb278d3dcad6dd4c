// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
)

// ErrNotCaptured is wrapped by errors of Run and Check that found no redirection.
var ErrNotCaptured = errors.New("connections are not redirected to Envoy, so the workload would run without protection: run istio-iptables before the agent; " +
	"with a CNI plugin of the mesh, start the pod again once the plugin runs on this node")

// errUnsupported is wrapped by the errors of a kernel without nftables.
var errUnsupported = errors.New("the kernel does not support it")

// ownTable is the name of our table of nftables, in the family ip and in ip6. Nobody else changes it.
const ownTable = "outrigger"

// run applies the settings to the network namespace of the thread: it replaces the rules of an
// earlier run, or removes them, and checks that they have an effect.
func (s *Settings) run(ctx context.Context, log *slog.Logger, out io.Writer) error {
	switch {
	case s.DryRun:
		return dryRun(s, out)
	case s.Remove:
		if err := s.remove(ctx); err != nil {
			return err
		}
		log.Info("connections are no longer redirected to Envoy")
		return nil
	}
	if !s.SkipApply {
		if err := s.apply(ctx, log); err != nil {
			return err
		}
		log.Info("connections are redirected to Envoy")
	}
	if !s.Validate {
		return nil
	}
	if err := s.validate(ctx); errors.Is(err, ErrNotCaptured) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w: %w", ErrNotCaptured, err)
	}
	log.Info("the redirection to Envoy works")
	return nil
}

func (s *Settings) apply(ctx context.Context, log *slog.Logger) error {
	// Rules without their routes would lose packets, so the routes come first.
	if err := addRoutes(s); err != nil {
		return err
	}
	if s.Variant != "" {
		if err := restoreIPTables(ctx, s.Variant, s.Rules()); err != nil {
			return err
		}
		return s.others(ctx, log, replaceTables(nil))
	}
	err := replaceTables(s.Rules())
	if errors.Is(err, errUnsupported) {
		log.Warn("nftables is not available, iptables is used", "err", err)
		return restoreIPTables(ctx, iptablesLegacy, s.Rules())
	}
	return s.others(ctx, log, err)
}

// others deals with rules of other kinds than those that were applied: those of this program are
// removed, and with Reconcile all. Otherwise a warning says that they exist.
func (s *Settings) others(ctx context.Context, log *slog.Logger, err error) error {
	if err != nil {
		return err
	}
	found, err := findLeftovers()
	if err != nil {
		log.Warn("cannot determine whether other rules also redirect connections", "err", err)
		return nil
	}
	delete(found.iptables, s.Variant)
	strange := leftovers{iptables: map[string]bool{}}
	if !s.Reconcile {
		for variant, own := range found.iptables {
			if !own {
				strange.iptables[variant] = own
				delete(found.iptables, variant)
			}
		}
		strange.native, found.native = found.native, nil
	}
	if kinds := strange.String(); kinds != "" {
		log.Warn("other rules also redirect connections and may take precedence; remove them with istio-clean-iptables, or use --reconcile", "name", kinds)
	}
	return found.remove(ctx)
}

// remove removes rules of all kinds. An error with one kind does not keep the others.
func (s *Settings) remove(ctx context.Context) error {
	own := replaceTables(nil)
	found, err := findLeftovers()
	if errors.Is(own, errUnsupported) {
		own, err, found.iptables = nil, nil, map[string]bool{iptablesLegacy: true}
	}
	return errors.Join(own, err, found.remove(ctx), removeRoutes(s))
}

func (l leftovers) remove(ctx context.Context) error {
	for variant := range l.iptables {
		if err := restoreIPTables(ctx, variant, nil); err != nil {
			return fmt.Errorf("removing rules of iptables-%s: %w", variant, err)
		}
	}
	if len(l.native) == 0 {
		return nil
	}
	return l.removeNative()
}

// dryRun prints the rules.
func dryRun(s *Settings, out io.Writer) error {
	if s.Remove {
		_, err := fmt.Fprintf(out, "# removes the table %s of nftables, for IPv4 and IPv6\n", ownTable)
		return err
	}
	if err := printRules(out, s.Rules(), s.RestoreFormat); err != nil {
		return err
	}
	if s.DryRunFile == "" {
		return nil
	}
	file, err := os.OpenFile(s.DryRunFile, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("%s: %w", envDryRunFile, err)
	}
	if err := printRules(file, s.Rules(), true); err != nil {
		_ = file.Close() // the first error counts
		return fmt.Errorf("%s: %w", envDryRunFile, err)
	}
	return file.Close()
}

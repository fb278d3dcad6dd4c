// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"strings"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// covers reports whether each value that one match takes is taken by another one,
// too. Nil and empty matches take every value; of regular expressions it is not
// known.
func covers(outer, inner *networkingv1alpha3.StringMatch) bool {
	if outer.GetMatchType() == nil {
		return true
	}
	if inner.GetMatchType() == nil || outer.GetRegex() != "" || inner.GetRegex() != "" {
		return false
	}
	prefix, isPrefix := outer.GetMatchType().(*networkingv1alpha3.StringMatch_Prefix)
	if !isPrefix {
		return proto.Equal(outer, inner)
	}
	return strings.HasPrefix(inner.GetExact()+inner.GetPrefix(), prefix.Prefix)
}

// narrower returns the match of a delegate where it is the narrower one, and that
// of the root where the delegate takes every value.
func narrower(root, sub *networkingv1alpha3.StringMatch) (*networkingv1alpha3.StringMatch, bool) {
	switch {
	case sub.GetMatchType() == nil && (root != nil || sub == nil):
		return root, true
	case covers(root, sub):
		return sub, true
	}
	return nil, false
}

// wider returns the one of two matches that takes the values of both: what two
// routes both exclude is excluded by either.
func wider(root, sub *networkingv1alpha3.StringMatch) (*networkingv1alpha3.StringMatch, bool) {
	switch {
	case covers(root, sub):
		return root, true
	case covers(sub, root):
		return sub, true
	}
	return nil, false
}

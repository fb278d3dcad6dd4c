// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package filewatch watches files through symbolic links, as Kubernetes mounts
// them: a link on the way to a file may be replaced. [Watch] reports events of some
// paths; [Points] lists the names that have to be watched for one path.
package filewatch

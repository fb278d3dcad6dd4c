// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package codec reads and writes configuration objects as YAML and JSON.
//
// [Decode] and its variants read files strictly: an unknown field, a wrong type
// or a broken rule of package validate is a [model.Problem] with file and line,
// and hides nothing of the other documents. [EncodeJSON] and [EncodeYAML] write
// objects; [DecodeStored] reads what EncodeJSON wrote without checking it again.
// [Documents] cuts a file into documents for programs that edit it.
package codec

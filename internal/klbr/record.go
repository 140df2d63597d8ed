package klbr

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Record is one immutable fact in a session's log.
type Record struct {
	Session string `json:"session"`
	Seq     int64  `json:"seq"`            // dense, from 1, per session
	Lane    string `json:"lane,omitempty"` // empty for records that belong to no lane
	Turn    int64  `json:"turn,omitempty"` // dense, from 1, per session; 0 for none
	Time    int64  `json:"time"`           // microseconds since 1970 UTC
	Kind    Kind   `json:"kind"`
	V       int    `json:"v"` // version of the kind's body
	// Body is the kind's JSON. Where Ref is set it is stored as an artifact:
	// Body is then empty and Head holds its first bytes.
	Body json.RawMessage `json:"body,omitempty"`
	Ref  *BodyRef        `json:"ref,omitempty"`
}

// BodyRef stands for a body above MaxInlineBody.
type BodyRef struct {
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"` // bytes
	Head   string `json:"head"` // the first HeadBytes, valid UTF-8
}

const (
	// MaxInlineBody is the largest body, in bytes, that stands in the log itself.
	MaxInlineBody = 64 << 10
	// HeadBytes bounds BodyRef.Head.
	HeadBytes = 1 << 10
)

// Kind names what a record says: noun.verb, past tense.
type Kind string

// Body is implemented by the body types, each of one kind and one version.
type Body interface {
	RecordKind() (kind Kind, version int)
}

// NewRecord makes a record of body; Session, Seq and Time are the caller's to
// set. It panics where a body cannot be encoded, which is a defect.
func NewRecord(lane string, turn int64, body Body) Record {
	kind, version := body.RecordKind()
	b, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("klbr: encode %s: %v", kind, err))
	}
	return Record{Lane: lane, Turn: turn, Kind: kind, V: version, Body: b}
}

// Decode gives the typed body of a record, as a pointer to the kind's struct.
// It returns (nil, nil) for an unknown kind or a newer version: such a record
// is kept and passed on, not understood. A record whose body is an artifact
// must be given its bytes first.
func (r Record) Decode() (Body, error) {
	b := New(r.Kind)
	if b == nil {
		return nil, nil
	}
	if _, version := b.RecordKind(); r.V > version {
		return nil, nil
	}
	if r.Ref != nil && len(r.Body) == 0 {
		return nil, fmt.Errorf("decode %s at seq %d: its body is artifact %s and was not loaded", r.Kind, r.Seq, r.Ref.SHA256)
	}
	if err := json.Unmarshal(r.Body, b); err != nil {
		return nil, fmt.Errorf("decode %s at seq %d: %w", r.Kind, r.Seq, err)
	}
	return b, nil
}

// New gives an empty body of kind k, or nil where k is unknown.
func New(k Kind) Body {
	f, ok := kinds[k]
	if !ok {
		return nil
	}
	return f()
}

// Kinds lists every known kind in alphabetical order.
func Kinds() []Kind {
	ks := make([]Kind, 0, len(kinds))
	for k := range kinds {
		ks = append(ks, k)
	}
	slices.Sort(ks)
	return ks
}

var kinds = map[Kind]func() Body{}

func register[B any, P interface {
	*B
	Body
}]() {
	kind, _ := P(new(B)).RecordKind()
	if _, dup := kinds[kind]; dup {
		panic("klbr: kind registered twice: " + string(kind))
	}
	kinds[kind] = func() Body { return P(new(B)) }
}

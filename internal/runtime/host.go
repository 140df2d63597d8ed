package runtime

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"

	"klbr/internal/engine"
	"klbr/internal/klbr"
)

// The parameters and results of the host calls: docs/workers.md.
type (
	callerParams struct {
		Turn    int64  `json:"turn"`
		Attempt int    `json:"attempt"`
		Key     string `json:"key,omitempty"`
	}
	readParams struct {
		callerParams
		After int64 `json:"after"`
	}
	readResult struct {
		Records []klbr.Record `json:"records"`
		Upto    int64         `json:"upto"`
		Pending []klbr.Record `json:"pending"`
		Ledger  LedgerHead    `json:"ledger"`
	}
	modelParams struct {
		callerParams
		Route  string           `json:"route"`
		Base   string           `json:"base"`
		Append []klbr.Message   `json:"append"`
		Reset  string           `json:"reset,omitempty"`
		Join   []int64          `json:"join,omitempty"`
		Tools  []klbr.Tool      `json:"tools,omitempty"`
		Params klbr.ModelParams `json:"params"`
	}
	modelResult struct {
		Called   int64        `json:"called"`
		Answered int64        `json:"answered"`
		Head     string       `json:"head"`
		Count    int          `json:"count"`
		Answer   klbr.Message `json:"answer"`
		klbr.ModelOutcome
	}
	cellParams struct {
		callerParams
		Code     string `json:"code"`
		TimeoutS int64  `json:"timeout_s"`
	}
	cellResult struct {
		Cell        int64             `json:"cell"`
		Generation  int64             `json:"generation"`
		Status      klbr.CellStatus   `json:"status"`
		ElapsedUS   int64             `json:"elapsed_us"`
		Result      string            `json:"result"`
		Reason      string            `json:"reason,omitempty"`
		Error       *klbr.CellRaised  `json:"error,omitempty"`
		Outputs     []klbr.CellOutput `json:"outputs"`
		OutputBytes int64             `json:"output_bytes"`
		Truncated   bool              `json:"truncated,omitempty"`
		Whole       string            `json:"whole,omitempty"`
		Lost        *klbr.KernelLoss  `json:"lost,omitempty"`
	}
	textParams struct {
		callerParams
		Text string `json:"text"`
	}
	seqResult struct {
		Seq int64 `json:"seq"`
	}
	effectParams struct {
		callerParams
		Type string          `json:"type"`
		Body json.RawMessage `json:"body"`
	}
	effectResult struct {
		Effect   int64              `json:"effect"`
		Outcome  klbr.EffectOutcome `json:"outcome"`
		RemoteID string             `json:"remote_id,omitempty"`
		Reason   string             `json:"reason,omitempty"`
	}
	putParams struct {
		callerParams
		Text   *string `json:"text,omitempty"`
		Base64 *string `json:"base64,omitempty"`
	}
	putResult struct {
		SHA256 string `json:"sha256"`
		Size   int    `json:"size"`
	}
	getParams struct {
		callerParams
		SHA256 string `json:"sha256"`
	}
	getResult struct {
		Base64 string `json:"base64"`
		Size   int    `json:"size"`
	}
)

const (
	maxCellTimeoutS = 600
	maxSayBytes     = 1 << 20
)

func newCellResult(f *klbr.CellFinished, outputs []klbr.CellOutput) cellResult {
	if outputs == nil {
		outputs = []klbr.CellOutput{}
	}
	return cellResult{
		Cell: f.Cell, Generation: f.Generation, Status: f.Status, ElapsedUS: f.ElapsedUS, Result: f.Result,
		Reason: f.Reason, Error: f.Error, Outputs: outputs, OutputBytes: f.OutputBytes, Truncated: f.Truncated,
		Whole: f.Whole, Lost: f.Lost,
	}
}

// host serves one request of a policy. It does not block.
func (s *session) host(p *policySlot, c HostCall) {
	var who callerParams
	if err := json.Unmarshal(c.Params, &who); err != nil {
		c.Reply(nil, klbr.Errorf(klbr.CodeInvalid, "%s: %v", c.Method, err))
		return
	}
	a := engine.Attempt{Turn: who.Turn, Attempt: who.Attempt}
	run := p.run(a)
	if run == nil {
		c.Reply(nil, klbr.Errorf(klbr.CodeFenced, "attempt %d of turn %d is over", a.Attempt, a.Turn))
		return
	}
	run.begin()
	done := func(v any, err error) {
		run.end()
		c.Reply(v, err)
	}
	if err := s.dispatch(run, a, c, done); err != nil {
		done(nil, err)
	}
}

func (s *session) dispatch(run *turnRun, a engine.Attempt, c HostCall, done reply) error {
	caller := func(key string, args any) engine.Caller {
		return engine.Caller{Attempt: a, Key: key, Args: argsDigest(args)}
	}
	switch c.Method {
	case "context.read":
		var p readParams
		if err := decode(c, &p); err != nil {
			return err
		}
		s.spawn(func() {
			v, err := s.contextRead(a, p.After)
			if err == nil {
				run.upto.Store(max(run.upto.Load(), v.Upto))
			}
			done(v, err)
		})
	case "model.call":
		var p modelParams
		if err := decode(c, &p); err != nil {
			return err
		}
		if p.Route == "" {
			p.Route = "llm"
		}
		key := p.Key
		p.callerParams = callerParams{}
		ev := engine.ModelCall{
			Caller: caller(key, p), Route: p.Route, Base: p.Base, Append: p.Append, Reset: p.Reset,
			Join: p.Join, Tools: p.Tools, Params: p.Params, Upto: run.upto.Load(),
		}
		s.ask(func(to engine.ReplyTo) engine.Event { ev.Reply = to; return ev }, done)
	case "cell.run":
		var p cellParams
		if err := decode(c, &p); err != nil {
			return err
		}
		if p.TimeoutS < 1 || p.TimeoutS > maxCellTimeoutS {
			return klbr.Errorf(klbr.CodeInvalid, "timeout_s is %d", p.TimeoutS).WithHint("use 1 to 600")
		}
		key := p.Key
		p.callerParams = callerParams{}
		ev := engine.CellRun{Caller: caller(key, p), Code: p.Code, TimeoutMS: p.TimeoutS * 1000}
		s.ask(func(to engine.ReplyTo) engine.Event { ev.Reply = to; return ev }, done)
	case "message.say":
		var p textParams
		if err := decode(c, &p); err != nil {
			return err
		}
		if p.Text == "" || len(p.Text) > maxSayBytes {
			return klbr.Errorf(klbr.CodeInvalid, "text is empty or above 1 MiB")
		}
		ev := engine.Say{Caller: caller(p.Key, nil), Text: p.Text}
		s.ask(func(to engine.ReplyTo) engine.Event { ev.Reply = to; return ev }, done)
	case "note.log":
		var p textParams
		if err := decode(c, &p); err != nil {
			return err
		}
		ev := engine.Note{Caller: caller(p.Key, nil), Text: p.Text}
		s.ask(func(to engine.ReplyTo) engine.Event { ev.Reply = to; return ev }, done)
	case "effect.request":
		var p effectParams
		if err := decode(c, &p); err != nil {
			return err
		}
		key := p.Key
		p.callerParams = callerParams{}
		ev := engine.EffectRequest{Caller: caller(key, p), Type: p.Type, Body: p.Body}
		s.ask(func(to engine.ReplyTo) engine.Event { ev.Reply = to; return ev }, done)
	case "artifact.put":
		var p putParams
		if err := decode(c, &p); err != nil {
			return err
		}
		s.spawn(func() { done(s.artifactPut(p)) })
	case "artifact.get":
		var p getParams
		if err := decode(c, &p); err != nil {
			return err
		}
		s.spawn(func() {
			b, err := s.rt.opt.Artifacts.ReadAll(p.SHA256, 32<<20)
			done(getResult{Base64: base64.StdEncoding.EncodeToString(b), Size: len(b)}, err)
		})
	default:
		return klbr.Errorf(klbr.CodeUnsupported, "there is no host call %q", c.Method)
	}
	return nil
}

// decode reads a call's parameters strictly.
func decode(c HostCall, into any) error {
	d := json.NewDecoder(bytes.NewReader(c.Params))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return klbr.Errorf(klbr.CodeInvalid, "%s: %v", c.Method, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return klbr.Errorf(klbr.CodeInvalid, "%s: more than one value", c.Method)
	}
	return nil
}

func argsDigest(args any) string {
	b, err := json.Marshal(args)
	if err != nil {
		panic("runtime: encode arguments: " + err.Error()) // they were decoded from JSON
	}
	return klbr.Digest(b)
}

// contextRead gives the lane's records after a seq as one consistent view.
func (s *session) contextRead(a engine.Attempt, after int64) (readResult, error) {
	v := readResult{Records: []klbr.Record{}, Pending: []klbr.Record{}}
	var lane string
	var pending []int64
	err := s.query(s.ctx, func(st *engine.State) error {
		t := st.Turns[a.Turn]
		if t == nil || t.Attempt != a.Attempt {
			return klbr.Errorf(klbr.CodeFenced, "attempt %d of turn %d is over", a.Attempt, a.Turn)
		}
		lane, v.Upto = t.Lane, st.Session.Seq
		l := st.Lanes[lane]
		v.Ledger = LedgerHead{l.LedgerHead, l.LedgerCount}
		for _, w := range st.Waiting[lane] {
			if w.Mode == klbr.LaneSteer && w.Author == t.Author {
				pending = append(pending, w.Seq)
			}
		}
		return nil
	})
	if err != nil {
		return v, err
	}
	for at := after; at < v.Upto; {
		rs, err := s.rt.opt.Store.Lane(s.ctx, s.name, lane, at, nil, 500)
		if err != nil {
			return v, storageFailed(err)
		}
		if len(rs) == 0 {
			break
		}
		for _, r := range rs {
			at = r.Seq
			if r.Seq > v.Upto {
				break
			}
			if r, err = s.rt.hydrate(r); err != nil {
				return v, err
			}
			v.Records = append(v.Records, r)
		}
	}
	for _, seq := range pending {
		r, err := s.rt.opt.Store.Record(s.ctx, s.name, seq)
		if err == nil {
			r, err = s.rt.hydrate(r)
		}
		if err != nil {
			return v, storageFailed(err)
		}
		v.Pending = append(v.Pending, r)
	}
	return v, nil
}

func (s *session) artifactPut(p putParams) (any, error) {
	var b []byte
	switch {
	case p.Text != nil && p.Base64 == nil:
		b = []byte(*p.Text)
	case p.Base64 != nil && p.Text == nil:
		var err error
		if b, err = base64.StdEncoding.DecodeString(*p.Base64); err != nil {
			return nil, klbr.Errorf(klbr.CodeInvalid, "base64: %v", err)
		}
	default:
		return nil, klbr.Errorf(klbr.CodeInvalid, "artifact.put takes text or base64")
	}
	sum, err := s.rt.opt.Artifacts.PutBytes(context.WithoutCancel(s.ctx), b)
	if err != nil {
		return nil, storageFailed(err)
	}
	return putResult{SHA256: sum, Size: len(b)}, nil
}
